package dev.tenure.spring;

import dev.tenure.Lease;
import dev.tenure.WaitTimeoutException;
import java.time.Duration;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.Lock;
import java.util.concurrent.locks.ReentrantLock;
import org.springframework.integration.support.locks.ExpirableLockRegistry;
import org.springframework.integration.support.locks.RenewableLockRegistry;

/**
 * A {@code LockRegistry} of Spring Integration: a key is a mutex of tenure.
 *
 * <p>Its locks are re-entrant by thread, as Spring Integration needs it where a flow comes back to the same aggregator: the first
 * {@code lock} of a thread takes the lease, and its last {@code unlock} releases it. Threads of one application wait for each other in the JVM,
 * and one of them asks the store.
 *
 * <p>A lease is renewed until it is unlocked. {@code unlock} throws {@link dev.tenure.LostException} if it was lost before, and so does a
 * {@code lock} of a thread that holds it already; no work goes on as if all was well.
 */
public final class TenureLockRegistry implements ExpirableLockRegistry, RenewableLockRegistry {
    /** So many locks are kept before those that nobody uses are removed. */
    private static final int KEPT = 100_000;

    private final Locks locks;
    private final String prefix;
    private final Map<String, RegistryLock> kept = new ConcurrentHashMap<>();

    TenureLockRegistry(Locks locks, String prefix) {
        this.locks = locks;
        this.prefix = prefix;
    }

    /**
     * The lock of a key. Nothing is sent.
     *
     * @param key a text; with the prefix it is the name of the lock, up to 255 bytes
     */
    @Override
    public Lock obtain(Object key) {
        if (kept.size() > KEPT) {
            expireUnusedOlderThan(TimeUnit.MINUTES.toMillis(1));
        }
        return kept.computeIfAbsent(text(key), name -> new RegistryLock(prefix + name));
    }

    private static String text(Object key) {
        if (key instanceof String text) {
            return text;
        }
        throw new IllegalArgumentException("the key of a lock is a String, and not " + key);
    }

    /** Forgets locks that nobody has used for so long, in milliseconds. What is held or waited for stays. */
    @Override
    public void expireUnusedOlderThan(long age) {
        long before = System.nanoTime() - TimeUnit.MILLISECONDS.toNanos(age);
        kept.values().removeIf(lock -> lock.isUnusedSince(before));
    }

    /**
     * Checks that this thread holds the lock of a key. Nothing is sent, since leases are renewed by themselves.
     *
     * @throws dev.tenure.LostException if it was lost
     * @throws IllegalStateException if this thread does not hold it
     */
    @Override
    public void renewLock(Object key) {
        RegistryLock lock = kept.get(text(key));
        if (lock == null || !lock.local.isHeldByCurrentThread()) {
            throw new IllegalStateException("this thread does not hold \"" + prefix + key + "\"");
        }
        lock.lease.check();
    }

    private final class RegistryLock implements Lock {
        private final String name;
        private final ReentrantLock local = new ReentrantLock();
        private volatile long usedAt = System.nanoTime();
        /** Of the thread that has {@link #local}. */
        private Lease lease;

        RegistryLock(String name) {
            this.name = name;
        }

        boolean isUnusedSince(long time) {
            return !local.isLocked() && !local.hasQueuedThreads() && usedAt - time < 0;
        }

        /** Has the lease once this thread has the lock of the JVM. */
        private boolean taken(Taking taking) throws InterruptedException {
            boolean isTaken = false;
            try {
                usedAt = System.nanoTime();
                if (local.getHoldCount() > 1) {
                    lease.check();
                } else {
                    lease = taking.lease();
                }
                isTaken = lease != null;
                return isTaken;
            } finally {
                if (!isTaken) {
                    local.unlock();
                }
            }
        }

        @Override
        public void lock() {
            local.lock();
            boolean wasInterrupted = false;
            try {
                for (;;) {
                    try {
                        taken(() -> locks.mutex(name).acquire());
                        return;
                    } catch (InterruptedException e) {
                        wasInterrupted = true;
                        local.lock();
                    }
                }
            } finally {
                if (wasInterrupted) {
                    Thread.currentThread().interrupt();
                }
            }
        }

        @Override
        public void lockInterruptibly() throws InterruptedException {
            local.lockInterruptibly();
            taken(() -> locks.mutex(name).acquire());
        }

        @Override
        public boolean tryLock() {
            try {
                return local.tryLock() && taken(() -> locks.mutex(name).tryAcquire().orElse(null));
            } catch (InterruptedException e) {
                throw new AssertionError("it does not wait", e);
            }
        }

        @Override
        public boolean tryLock(long time, TimeUnit unit) throws InterruptedException {
            long until = System.nanoTime() + unit.toNanos(time);
            return local.tryLock(time, unit) && taken(() -> within(until - System.nanoTime()));
        }

        private Lease within(long nanos) throws InterruptedException {
            try {
                return nanos <= 0
                        ? locks.mutex(name).tryAcquire().orElse(null)
                        : locks.mutex(name).acquire(Duration.ofNanos(nanos));
            } catch (WaitTimeoutException e) {
                return null;
            }
        }

        @Override
        public void unlock() {
            if (!local.isHeldByCurrentThread()) {
                throw new IllegalMonitorStateException("this thread does not hold \"" + name + "\"");
            }
            try {
                usedAt = System.nanoTime();
                if (local.getHoldCount() == 1) {
                    Lease ended = lease;
                    lease = null;
                    ended.close();
                }
            } finally {
                local.unlock();
            }
        }

        @Override
        public Condition newCondition() {
            throw new UnsupportedOperationException("no conditions between processes");
        }
    }

    private interface Taking {
        /** Null: others hold it. */
        Lease lease() throws InterruptedException;
    }
}
