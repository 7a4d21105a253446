package dev.tenure.shop;

import net.javacrumbs.shedlock.spring.annotation.SchedulerLock;
import org.springframework.beans.factory.annotation.Value;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.scheduling.annotation.Scheduled;
import org.springframework.stereotype.Component;

/** A job that runs once in each period, in one of the instances. */
@Component
class Reports {
    private final JdbcTemplate jdbc;
    private final String instance;

    Reports(JdbcTemplate jdbc, @Value("${shop.instance}") String instance) {
        this.jdbc = jdbc;
        this.instance = instance;
    }

    @Scheduled(cron = "${shop.report}")
    @SchedulerLock(name = "report", lockAtMostFor = "5s", lockAtLeastFor = "1600ms")
    public void report() {
        jdbc.update("insert into reports (instance, at) values (?, ?)", instance, System.currentTimeMillis());
    }
}
