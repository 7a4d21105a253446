package dev.tenure.shop;

import net.javacrumbs.shedlock.spring.annotation.EnableSchedulerLock;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.scheduling.annotation.EnableAsync;
import org.springframework.scheduling.annotation.EnableScheduling;

/** An application as others write it. The tests run two instances of it, in one JVM or in two. */
@SpringBootApplication(scanBasePackages = {"dev.tenure.shop", "dev.tenure.examples"})
@EnableScheduling
@EnableAsync
@EnableSchedulerLock(defaultLockAtMostFor = "30s")
public class ShopApplication {
    /** Starts an instance, which works until it is ended. */
    public static void main(String[] arguments) {
        SpringApplication.run(ShopApplication.class, arguments);
    }
}
