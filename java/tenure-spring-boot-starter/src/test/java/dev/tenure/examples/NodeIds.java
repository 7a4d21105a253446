package dev.tenure.examples;

import dev.tenure.Lease;
import dev.tenure.spring.WorkerId;
import java.time.Instant;
import org.springframework.boot.autoconfigure.condition.ConditionalOnProperty;
import org.springframework.stereotype.Component;

/**
 * Ids of 63 bits that no two nodes make: 41 bits of milliseconds, 10 of the worker id, 12 of a counter.
 *
 * <p>The worker id is a lease, which may be lost at any time. An id is unique all the same: the lease was there before its time was read, and is
 * still held after that. So the number was this node's at that time, and the next holder of the number makes ids of later times. It does not
 * matter how long this thread is paused after the check.
 */
@Component
@ConditionalOnProperty("tenure.worker-id.pool")
public class NodeIds {
    private static final long EPOCH = Instant.parse("2024-01-01T00:00:00Z").toEpochMilli();
    private static final int WORKER_BITS = 10;
    private static final int COUNTER_BITS = 12;

    private final WorkerId worker;
    private Lease newest;
    private long last;
    private int counter;

    /**
     * An id, and what it was made of.
     *
     * @param token of the lease of the worker id
     */
    public record Id(long value, long millis, int worker, long token) {}

    /** Ids by the worker id of this instance. */
    public NodeIds(WorkerId worker) {
        this.worker = worker;
    }

    /**
     * The next id. No round trip.
     *
     * @throws dev.tenure.LostException if this node has no number now
     */
    public synchronized Id next() {
        Lease lease = worker.lease();
        long now = System.currentTimeMillis();
        if (now < last) {
            throw new IllegalStateException("the clock was set back by " + (last - now) + " ms");
        }
        counter = now == last ? counter + 1 : 0;
        if (lease != newest) {
            // Who had the number before may have used this millisecond.
            newest = lease;
            last = now;
            counter = 1 << COUNTER_BITS;
        }
        while (counter == 1 << COUNTER_BITS) {
            Thread.onSpinWait();
            now = System.currentTimeMillis();
            counter = now > last ? 0 : counter;
        }
        last = now;
        // Not before the time was read: it says that the number was this node's then.
        lease.check();
        long value = ((now - EPOCH) << WORKER_BITS | lease.slot()) << COUNTER_BITS | counter;
        return new Id(value, now, lease.slot(), lease.token());
    }
}
