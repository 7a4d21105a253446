package dev.tenure;

import java.time.Duration;
import java.util.Map;
import java.util.concurrent.Callable;

/**
 * A value that one process of a fleet loads for all, so that an expired cache entry does not have all of them load it at once.
 *
 * <p>A stale value is not shown over HTTP: who comes while another loads waits for the new one.
 */
public final class SingleFlight {
    private final Tenure tenure;
    private final TenureLock lock;
    private final Duration fresh;

    SingleFlight(Tenure tenure, TenureLock lock, Duration fresh) {
        this.tenure = tenure;
        this.lock = lock;
        this.fresh = fresh;
    }

    /**
     * A value, and where it came from.
     *
     * @param isLoaded whether this call has loaded it
     * @param token under which it was loaded
     */
    public record Fetched(byte[] value, boolean isLoaded, long token) {}

    /** How long others wait for a loader that has died: 30 s if nothing else is said. */
    public SingleFlight ttl(Duration ttl) {
        return new SingleFlight(tenure, lock.ttl(ttl), fresh);
    }

    /**
     * The value if it is fresh; otherwise loads it, or waits for who loads it. One round trip for a fresh value, and three to load.
     *
     * @param load returns up to 256 KiB; what it throws is thrown on, and another loads
     * @throws LostException if this call has loaded it, and its lease was lost meanwhile
     * @throws UnavailableException if nobody answers
     */
    public Fetched get(Callable<byte[]> load) throws Exception {
        return fetch(lock.unlessFresh(), load);
    }

    /** Loads it although it is fresh. As {@link #get} otherwise. */
    public Fetched refresh(Callable<byte[]> load) throws Exception {
        return fetch(lock, load);
    }

    private Fetched fetch(TenureLock lock, Callable<byte[]> load) throws Exception {
        Object turn = lock.turn();
        if (turn instanceof Fetched found) {
            return found;
        }
        try (Lease lease = new Lease(tenure, (Hold) turn)) {
            byte[] value = load.call();
            lease.check();
            tenure.publish(lease.hold, value, fresh, Duration.ZERO);
            return new Fetched(value, true, lease.token());
        }
    }

    static Fetched fetched(Map<?, ?> fields) throws Api.Unanswered {
        byte[] value = Api.bytes(fields, "value");
        if (value == null) {
            throw Api.notUnderstood(null);
        }
        return new Fetched(value, false, Api.whole(fields, "token"));
    }
}
