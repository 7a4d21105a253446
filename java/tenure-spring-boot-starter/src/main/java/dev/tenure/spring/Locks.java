package dev.tenure.spring;

import dev.tenure.Tenure;
import dev.tenure.TenureLock;

/** Locks with the ttl and the label of the application. */
final class Locks {
    private final Tenure tenure;
    private final TenureProperties properties;
    private final String application;

    Locks(Tenure tenure, TenureProperties properties, String application) {
        this.tenure = tenure;
        this.properties = properties;
        this.application = application;
    }

    TenureLock mutex(String name) {
        return set(tenure.mutex(name));
    }

    TenureLock slotPool(String name, int slots) {
        return set(tenure.slotPool(name, slots));
    }

    private TenureLock set(TenureLock lock) {
        String label = properties.label() == null ? application : properties.label();
        TenureLock set = lock.ttl(properties.ttl());
        return label == null || label.isEmpty() ? set : set.label(label);
    }
}
