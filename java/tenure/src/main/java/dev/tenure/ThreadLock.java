package dev.tenure;

import java.time.Duration;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.Lock;

/** A lock as {@code java.util.concurrent} has it. */
final class ThreadLock implements Lock {
    private final TenureLock lock;
    private final ThreadLocal<Lease> held = new ThreadLocal<>();

    ThreadLock(TenureLock lock) {
        this.lock = lock;
    }

    private void refuseAgain() {
        if (held.get() != null) {
            // It would wait for itself.
            throw new IllegalMonitorStateException("this thread holds \"" + lock.name() + "\", and it is not re-entrant");
        }
    }

    @Override
    public void lock() {
        refuseAgain();
        boolean wasInterrupted = false;
        try {
            while (held.get() == null) {
                try {
                    held.set(lock.acquire());
                } catch (InterruptedException e) {
                    wasInterrupted = true;
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
        refuseAgain();
        held.set(lock.acquire());
    }

    @Override
    public boolean tryLock() {
        if (held.get() != null) {
            return false;
        }
        lock.tryAcquire().ifPresent(held::set);
        return held.get() != null;
    }

    @Override
    public boolean tryLock(long time, TimeUnit unit) throws InterruptedException {
        if (Thread.interrupted()) {
            throw new InterruptedException();
        }
        if (time <= 0 || held.get() != null) {
            return tryLock();
        }
        try {
            held.set(lock.acquire(Duration.ofNanos(unit.toNanos(time))));
            return true;
        } catch (WaitTimeoutException e) {
            return false;
        }
    }

    @Override
    public void unlock() {
        Lease lease = held.get();
        if (lease == null) {
            throw new IllegalMonitorStateException("this thread does not hold \"" + lock.name() + "\"");
        }
        held.remove();
        lease.close();
    }

    @Override
    public Condition newCondition() {
        throw new UnsupportedOperationException("no conditions between processes");
    }
}
