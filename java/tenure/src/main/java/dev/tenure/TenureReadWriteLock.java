package dev.tenure;

import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.locks.Lock;
import java.util.concurrent.locks.ReadWriteLock;

/** Many readers or one writer. Who came first goes first: a writer that waits keeps later readers waiting. */
public final class TenureReadWriteLock {
    private final Tenure tenure;
    private final String name;

    TenureReadWriteLock(Tenure tenure, String name) {
        this.tenure = tenure;
        this.name = name;
    }

    private TenureLock side(boolean isExclusive) {
        Map<String, Object> fields = new LinkedHashMap<>();
        fields.put("kind", "rw_lock");
        fields.put("exclusive", isExclusive);
        return new TenureLock(tenure, name, fields);
    }

    /** The side that many hold. */
    public TenureLock read() {
        return side(false);
    }

    /** The side that one holds, and nobody reads meanwhile. */
    public TenureLock write() {
        return side(true);
    }

    /** Both sides as locks of {@code java.util.concurrent}. Not re-entrant, and neither side becomes the other: see {@link TenureLock#asLock()}. */
    public ReadWriteLock asReadWriteLock() {
        Lock read = read().asLock();
        Lock write = write().asLock();
        return new ReadWriteLock() {
            @Override
            public Lock readLock() {
                return read;
            }

            @Override
            public Lock writeLock() {
                return write;
            }
        };
    }
}
