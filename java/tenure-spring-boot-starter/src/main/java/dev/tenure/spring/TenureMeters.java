package dev.tenure.spring;

import dev.tenure.Tenure;
import io.micrometer.core.instrument.FunctionCounter;
import io.micrometer.core.instrument.Gauge;
import io.micrometer.core.instrument.MeterRegistry;
import io.micrometer.core.instrument.binder.MeterBinder;

/** What the client counts, as meters of Micrometer. No round trip. */
final class TenureMeters implements MeterBinder {
    private final Tenure tenure;

    TenureMeters(Tenure tenure) {
        this.tenure = tenure;
    }

    @Override
    public void bindTo(MeterRegistry registry) {
        Gauge.builder("tenure.leases", tenure, client -> client.counts().held())
                .description("Leases and deliveries that this instance holds")
                .register(registry);
        Gauge.builder("tenure.waiting", tenure, client -> client.counts().waiting())
                .description("Acquisitions of this instance that wait")
                .register(registry);
        FunctionCounter.builder("tenure.leases.lost", tenure, client -> client.counts().lost())
                .description("Leases and deliveries that were lost: work was interrupted")
                .register(registry);
        FunctionCounter.builder("tenure.renewals", tenure, client -> client.counts().renewals())
                .description("Renewals that were answered")
                .register(registry);
    }
}
