package dev.tenure.shop;

import dev.tenure.spring.WorkerId;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;
import net.javacrumbs.shedlock.core.LockProvider;
import net.javacrumbs.shedlock.core.SimpleLock;
import org.springframework.beans.factory.ObjectProvider;
import org.springframework.beans.factory.annotation.Value;
import org.springframework.beans.factory.config.BeanPostProcessor;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.context.event.EventListener;
import org.springframework.jdbc.core.JdbcTemplate;

@Configuration(proxyBeanMethods = false)
class ShopBeans {
    /** What happened to the worker id of this instance. */
    static final class Events {
        final List<Object> seen = new CopyOnWriteArrayList<>();

        @EventListener
        void lost(WorkerId.Lost lost) {
            seen.add(lost);
        }

        @EventListener
        void acquired(WorkerId.Acquired acquired) {
            seen.add(acquired);
        }
    }

    @Bean
    Events events() {
        return new Events();
    }

    @Bean
    String shopName() {
        return "shop-4711";
    }

    /** Writes down when a lock was granted to whom: between the two times. */
    @Bean
    static BeanPostProcessor recordsGrants(ObjectProvider<JdbcTemplate> jdbc, @Value("${shop.instance}") String instance) {
        return new BeanPostProcessor() {
            @Override
            public Object postProcessAfterInitialization(Object bean, String name) {
                if (!(bean instanceof LockProvider provider)) {
                    return bean;
                }
                return (LockProvider) job -> {
                    long before = System.currentTimeMillis();
                    java.util.Optional<SimpleLock> lock = provider.lock(job);
                    long after = System.currentTimeMillis();
                    lock.ifPresent(granted -> jdbc.getObject().update(
                            "insert into grants (job, instance, before, after) values (?, ?, ?, ?)", job.getName(), instance, before, after));
                    return lock;
                };
            }
        };
    }
}
