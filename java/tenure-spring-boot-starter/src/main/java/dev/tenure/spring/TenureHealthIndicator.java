package dev.tenure.spring;

import dev.tenure.Tenure;
import org.springframework.boot.actuate.health.AbstractHealthIndicator;
import org.springframework.boot.actuate.health.Health;

/** Up while {@code tenure serve} is ready, which it is while its store answers. One round trip. */
final class TenureHealthIndicator extends AbstractHealthIndicator {
    private final Tenure tenure;

    TenureHealthIndicator(Tenure tenure) {
        super("tenure is not ready");
        this.tenure = tenure;
    }

    @Override
    protected void doHealthCheck(Health.Builder health) {
        tenure.checkReady();
        Tenure.Counts counts = tenure.counts();
        health.up().withDetail("held", counts.held()).withDetail("waiting", counts.waiting()).withDetail("lost", counts.lost());
    }
}
