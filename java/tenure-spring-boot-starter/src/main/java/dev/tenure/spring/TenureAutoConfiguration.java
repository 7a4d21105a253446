package dev.tenure.spring;

import dev.tenure.Tenure;
import io.micrometer.core.instrument.binder.MeterBinder;
import net.javacrumbs.shedlock.core.LockProvider;
import org.springframework.beans.factory.config.BeanDefinition;
import org.springframework.boot.actuate.autoconfigure.health.ConditionalOnEnabledHealthIndicator;
import org.springframework.boot.actuate.health.HealthIndicator;
import org.springframework.boot.autoconfigure.AutoConfiguration;
import org.springframework.boot.autoconfigure.condition.ConditionalOnClass;
import org.springframework.boot.autoconfigure.condition.ConditionalOnMissingBean;
import org.springframework.boot.autoconfigure.condition.ConditionalOnProperty;
import org.springframework.boot.context.properties.EnableConfigurationProperties;
import org.springframework.context.ApplicationEventPublisher;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.context.annotation.Role;
import org.springframework.core.env.Environment;
import org.springframework.integration.support.locks.LockRegistry;
import org.springframework.transaction.TransactionExecution;
import org.springframework.transaction.TransactionExecutionListener;

/**
 * What an application gets, by the settings {@code tenure.*} ({@link TenureProperties}). Each bean but those behind annotations gives way
 * to one of the application.
 *
 * <p>A {@link Tenure}: one client for all. Methods with {@link Locked} and {@link QueueListener}. A {@link WorkerId}, where
 * {@code tenure.worker-id.pool} is set. Where they are on the class path: a {@code LockRegistry} for Spring Integration, a {@code LockProvider}
 * for ShedLock, a health indicator and meters. Nothing is sent before something is asked for.
 */
@AutoConfiguration
@EnableConfigurationProperties(TenureProperties.class)
public class TenureAutoConfiguration {
    /** The client. It is closed after all that uses it. */
    @Bean(destroyMethod = "close")
    @ConditionalOnMissingBean
    Tenure tenure(TenureProperties properties) {
        Tenure.Builder builder = Tenure.builder(properties.url()).patience(properties.patience());
        return (properties.token() == null ? builder : builder.token(properties.token())).build();
    }

    @Bean
    Locks tenureLocks(Tenure tenure, TenureProperties properties, Environment environment) {
        return new Locks(tenure, properties, environment.getProperty("spring.application.name"));
    }

    @Bean
    @Role(BeanDefinition.ROLE_INFRASTRUCTURE)
    static LockedPostProcessor tenureLockedPostProcessor(Environment environment) {
        return new LockedPostProcessor(environment.getProperty("spring.aop.proxy-target-class", Boolean.class, true));
    }

    @Bean
    @Role(BeanDefinition.ROLE_INFRASTRUCTURE)
    static QueueListeners tenureQueueListeners() {
        return new QueueListeners();
    }

    @Bean
    @ConditionalOnMissingBean
    @ConditionalOnProperty("tenure.worker-id.pool")
    WorkerId tenureWorkerId(Locks locks, TenureProperties properties, ApplicationEventPublisher events) {
        TenureProperties.WorkerId settings = properties.workerId();
        return new WorkerId(
                locks.slotPool(settings.pool(), settings.slots()).lockDelay(settings.lockDelay()), settings.waitFor(), events::publishEvent);
    }

    @Configuration(proxyBeanMethods = false)
    @ConditionalOnClass(TransactionExecutionListener.class)
    static class Transactions {
        /** No commit under a lease that is lost: what this throws has the transaction rolled back. */
        @Bean
        TransactionExecutionListener tenureCommits() {
            return new TransactionExecutionListener() {
                @Override
                public void beforeCommit(TransactionExecution transaction) {
                    LockedInterceptor.checkHeld();
                }
            };
        }
    }

    @Configuration(proxyBeanMethods = false)
    @ConditionalOnClass(LockRegistry.class)
    static class Integration {
        @Bean
        @ConditionalOnMissingBean(LockRegistry.class)
        TenureLockRegistry tenureLockRegistry(Locks locks, TenureProperties properties) {
            return new TenureLockRegistry(locks, properties.lockRegistry().prefix());
        }
    }

    @Configuration(proxyBeanMethods = false)
    @ConditionalOnClass(LockProvider.class)
    static class ShedLock {
        @Bean(destroyMethod = "close")
        @ConditionalOnMissingBean(LockProvider.class)
        TenureLockProvider tenureLockProvider(Locks locks, TenureProperties properties) {
            return new TenureLockProvider(locks, properties.shedlock().prefix(), properties.ttl());
        }
    }

    @Configuration(proxyBeanMethods = false)
    @ConditionalOnClass(ConditionalOnEnabledHealthIndicator.class)
    static class Health {
        @Bean
        @ConditionalOnEnabledHealthIndicator("tenure")
        @ConditionalOnMissingBean(name = "tenureHealthIndicator")
        HealthIndicator tenureHealthIndicator(Tenure tenure) {
            return new TenureHealthIndicator(tenure);
        }
    }

    @Configuration(proxyBeanMethods = false)
    @ConditionalOnClass(MeterBinder.class)
    static class Meters {
        @Bean
        @ConditionalOnMissingBean(name = "tenureMeters")
        MeterBinder tenureMeters(Tenure tenure) {
            return new TenureMeters(tenure);
        }
    }
}
