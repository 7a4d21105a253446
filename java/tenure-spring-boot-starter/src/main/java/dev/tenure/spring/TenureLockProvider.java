package dev.tenure.spring;

import dev.tenure.Lease;
import java.time.Duration;
import java.time.Instant;
import java.util.Optional;
import java.util.concurrent.Future;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import net.javacrumbs.shedlock.core.AbstractSimpleLock;
import net.javacrumbs.shedlock.core.ExtensibleLockProvider;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.SimpleLock;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * A {@code LockProvider} for ShedLock: a job is a mutex of tenure.
 *
 * <p>{@code lockAtLeastFor} is the {@code minHold} of its lease: the store keeps the lock for so long, also if the job ends sooner or its
 * instance dies. {@code lockAtMostFor} is how long this instance holds it: it releases the lock then, and {@code extend} moves that.
 * Until then the lease is renewed, so the lock of an instance that dies is free after {@code tenure.ttl} (or {@code lockAtMostFor}, if that is
 * shorter), and not only after {@code lockAtMostFor}.
 *
 * <p>A lock that was lost, or that its job has held for longer than {@code lockAtMostFor}, is told in the log when the job ends.
 */
public final class TenureLockProvider implements ExtensibleLockProvider, AutoCloseable {
    private static final Logger LOG = LoggerFactory.getLogger(TenureLockProvider.class);
    /** The shortest ttl that there is. */
    private static final Duration TTL_MIN = Duration.ofMillis(100);

    private final Locks locks;
    private final String prefix;
    private final Duration ttl;
    private final ScheduledThreadPoolExecutor ends;

    TenureLockProvider(Locks locks, String prefix, Duration ttl) {
        this.locks = locks;
        this.prefix = prefix;
        this.ttl = ttl;
        ends = new ScheduledThreadPoolExecutor(1, task -> {
            Thread thread = new Thread(task, "tenure-shedlock");
            thread.setDaemon(true);
            return thread;
        });
        ends.setRemoveOnCancelPolicy(true);
    }

    /** Takes the lock of a job if it is free. One round trip. */
    @Override
    public Optional<SimpleLock> lock(LockConfiguration job) {
        Duration most = job.getLockAtMostFor();
        Duration shorter = most.compareTo(ttl) < 0 ? most : ttl;
        return locks.mutex(prefix + job.getName())
                .ttl(shorter.compareTo(TTL_MIN) < 0 ? TTL_MIN : shorter)
                .minHold(job.getLockAtLeastFor())
                .tryAcquire()
                .map(lease -> new JobLock(job, lease, false));
    }

    /** Ends no lock: each ends with its job, or with the client. */
    @Override
    public void close() {
        ends.shutdownNow();
    }

    private final class JobLock extends AbstractSimpleLock {
        private final Lease lease;
        private final boolean isExtended;
        private final Future<?> end;

        JobLock(LockConfiguration job, Lease lease, boolean isExtended) {
            super(job);
            this.lease = lease;
            this.isExtended = isExtended;
            end = ends.schedule(this::giveUp, millisTo(job.getLockAtMostUntil()), TimeUnit.MILLISECONDS);
        }

        private long millisTo(Instant time) {
            return Math.max(0, Duration.between(Instant.now(), time).toMillis());
        }

        private void giveUp() {
            release();
            LOG.warn("the job {} works for longer than lockAtMostFor, {}: others may run it now", lease.name(), lockConfiguration.getLockAtMostFor());
        }

        @Override
        protected Optional<SimpleLock> doExtend(LockConfiguration longer) {
            // What the timer has begun to release cannot be taken back.
            if (!end.cancel(false) || lease.isLost()) {
                return Optional.empty();
            }
            return Optional.of(new JobLock(longer, lease, true));
        }

        @Override
        protected void doUnlock() {
            if (!end.cancel(false)) {
                // It was told already.
                return;
            }
            if (lease.isLost()) {
                LOG.error("the lock of the job {} was lost while it worked: others may have run it meanwhile", lease.name());
                return;
            }
            long early = millisTo(lockConfiguration.getLockAtLeastUntil());
            if (isExtended && early > 0) {
                // The store keeps it for as long as was said first.
                ends.schedule(this::release, early, TimeUnit.MILLISECONDS);
            } else {
                release();
            }
        }

        private void release() {
            try {
                if (!lease.release()) {
                    LOG.error("the lock of the job {} was ended while it worked: others may have run it meanwhile", lease.name());
                }
            } catch (dev.tenure.TenureException e) {
                LOG.debug("the release of {} goes on", lease.name(), e);
            }
        }
    }
}
