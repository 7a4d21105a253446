package dev.tenure.examples;

import dev.tenure.Lease;
import dev.tenure.Tenure;
import dev.tenure.WaitTimeoutException;
import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.TimeUnit;
import org.springframework.stereotype.Component;

/**
 * The lock component that many services have around {@code SET key id NX PX} and a script that compares: the same two verbs, on tenure.
 *
 * <p>What they had to get right by hand is the lease's: an id for each acquisition, an expiry that is set with it, a release that ends one's own
 * alone. New are the place in line of who waits, the renewal while the work goes on, and the token.
 */
@Component
public class RedisStyleLock {
    private final Tenure tenure;
    private final ThreadLocal<Map<String, Lease>> held = ThreadLocal.withInitial(HashMap::new);

    /** Locks by this client. */
    public RedisStyleLock(Tenure tenure) {
        this.tenure = tenure;
    }

    /**
     * Takes the lock if it is free. If this process dies, it is free after that time.
     *
     * @return whether this thread holds it now; false also if it held it before
     */
    public boolean tryLock(String key, long ttl, TimeUnit unit) {
        Optional<Lease> lease = tenure.mutex(key).ttl(Duration.of(ttl, unit.toChronoUnit())).tryAcquire();
        lease.ifPresent(taken -> held.get().put(key, taken));
        return lease.isPresent();
    }

    /** The same, and waits for its turn for so long. */
    public boolean tryLock(String key, long wait, long ttl, TimeUnit unit) throws InterruptedException {
        if (held.get().containsKey(key)) {
            return false;
        }
        try {
            Duration most = Duration.of(wait, unit.toChronoUnit());
            held.get().put(key, tenure.mutex(key).ttl(Duration.of(ttl, unit.toChronoUnit())).acquire(most));
            return true;
        } catch (WaitTimeoutException e) {
            return false;
        }
    }

    /** The fencing token of what this thread holds, for what it writes to. */
    public long token(String key) {
        Lease lease = held.get().get(key);
        if (lease == null) {
            throw new IllegalMonitorStateException("this thread does not hold \"" + key + "\"");
        }
        lease.check();
        return lease.token();
    }

    /**
     * Releases what this thread holds, and nobody else's.
     *
     * @return whether it was this thread's until now; false: the work was not protected to its end
     */
    public boolean unlock(String key) {
        Lease lease = held.get().remove(key);
        return lease != null && lease.release();
    }
}
