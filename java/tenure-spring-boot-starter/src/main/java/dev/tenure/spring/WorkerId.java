package dev.tenure.spring;

import dev.tenure.Lease;
import dev.tenure.LostException;
import dev.tenure.TenureException;
import dev.tenure.TenureLock;
import dev.tenure.UnavailableException;
import java.time.Duration;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.function.Consumer;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import org.springframework.beans.factory.DisposableBean;
import org.springframework.beans.factory.InitializingBean;

/**
 * The number of this instance, which no other instance has: from 0 up to {@code tenure.worker-id.slots}.
 *
 * <p>It is taken before the beans are made that use it, and released after they are destroyed. If its lease is lost while the
 * application works, {@link #lease()} and {@link #number()} throw until another number is there; {@link Lost} and {@link Acquired} tell of both.
 *
 * <p>Ids that are made of a time, the number and a counter are unique if {@link #lease()} comes first, then the time is read, and then
 * {@link Lease#check()} is called on that lease: the number was this instance's at that time, however long the thread is paused afterwards. What
 * {@code tenure.worker-id.lock-delay} has to cover is by how much the clocks of two machines differ.
 */
public final class WorkerId implements InitializingBean, DisposableBean {
    private static final Logger LOG = LoggerFactory.getLogger(WorkerId.class);
    private static final long RETRY_MILLIS = 1000;

    private final TenureLock pool;
    private final Duration wait;
    private final Consumer<Object> events;
    private final CompletableFuture<Lease> first = new CompletableFuture<>();
    // It holds the lease, and lives until the end: at the exit of a JVM, what threads hold that have ended is released at once, and beans may
    // still make ids then.
    private final Thread thread = new Thread(this::run, "tenure-worker-id");
    private volatile Lease lease;
    private volatile boolean isEnding;

    /**
     * The number is this instance's no longer. Published as an event of the application.
     *
     * @param number the number that it was
     * @param token the token of its lease
     * @param loss why
     */
    public record Lost(int number, long token, LostException loss) {}

    /**
     * There is another number after a loss. Published as an event of the application; not at its start.
     *
     * @param number the number that it is
     * @param token the token of its lease
     */
    public record Acquired(int number, long token) {}

    WorkerId(TenureLock pool, Duration wait, Consumer<Object> events) {
        this.pool = pool;
        this.wait = wait;
        this.events = events;
        thread.setDaemon(true);
    }

    /**
     * The lease of the number: {@code slot()} is the number, {@code token()} larger than that of every instance that had it before. No round trip.
     *
     * @throws LostException if it is lost, and there is no other yet
     * @throws IllegalStateException after the end of the application
     */
    public Lease lease() {
        Lease now = lease;
        now.check();
        return now;
    }

    /** The number; it may be lost right after that: see {@link #lease()}. */
    public int number() {
        return lease().slot();
    }

    /** Takes a number, and waits for one as long as the application says. */
    @Override
    public void afterPropertiesSet() throws InterruptedException {
        thread.start();
        try {
            lease = first.get();
        } catch (ExecutionException e) {
            throw (RuntimeException) e.getCause();
        } catch (InterruptedException e) {
            destroy();
            throw e;
        }
        LOG.info("worker id {} of \"{}\"", lease.slot(), pool.name());
    }

    /** Releases the number. */
    @Override
    public void destroy() throws InterruptedException {
        isEnding = true;
        thread.interrupt();
        thread.join();
    }

    private void run() {
        try {
            Lease held = atStart();
            first.complete(held);
            try {
                while (!isEnding) {
                    held = untilLost(held);
                }
            } finally {
                release(held);
            }
        } catch (RuntimeException e) {
            first.completeExceptionally(e);
        } catch (InterruptedException e) {
            // It is told to end.
            first.completeExceptionally(new IllegalStateException("the application ends"));
        }
    }

    private Lease atStart() throws InterruptedException {
        long until = System.nanoTime() + wait.toNanos();
        for (;;) {
            long left = Math.max(0, until - System.nanoTime());
            try {
                return pool.acquire(Duration.ofNanos(left));
            } catch (UnavailableException e) {
                if (until - System.nanoTime() <= 0) {
                    throw e;
                }
                LOG.warn("asks for a worker id again: {}", e.getMessage());
                Thread.sleep(Math.min(RETRY_MILLIS, 1 + left / 1_000_000));
            }
        }
    }

    /** Holds a number until it is lost, and takes another. */
    private Lease untilLost(Lease held) throws InterruptedException {
        CompletableFuture<LostException> loss = new CompletableFuture<>();
        held.onLost(loss::complete);
        try {
            LostException lost = loss.get();
            LOG.error("worker id {} of \"{}\" is lost: {}", held.slot(), pool.name(), lost.getMessage());
            tell(new Lost(held.slot(), held.token(), lost));
        } catch (ExecutionException e) {
            throw new AssertionError("a callback throws nothing", e);
        }
        Lease next = again();
        lease = next;
        LOG.info("worker id {} of \"{}\"", next.slot(), pool.name());
        tell(new Acquired(next.slot(), next.token()));
        return next;
    }

    private Lease again() throws InterruptedException {
        for (;;) {
            if (isEnding) {
                // A listener of the event may have taken the interrupt.
                throw new InterruptedException();
            }
            try {
                return pool.acquire();
            } catch (TenureException e) {
                LOG.warn("asks for a worker id again: {}", e.getMessage());
                Thread.sleep(RETRY_MILLIS);
            }
        }
    }

    private void release(Lease held) {
        try {
            held.release();
        } catch (TenureException e) {
            LOG.debug("the release of the worker id goes on", e);
        }
    }

    private void tell(Object event) {
        try {
            events.accept(event);
        } catch (RuntimeException e) {
            LOG.error("a listener of {} failed", event, e);
        }
    }
}
