package dev.tenure;

import java.time.Duration;
import java.util.function.Consumer;

/**
 * What is held: renewed in the background until it is {@linkplain #close() closed} or lost.
 *
 * <pre>{@code
 * try (Lease lease = tenure.mutex("billing/4711").acquire(Duration.ofSeconds(5))) {
 *     charge(lease.token());
 *     lease.check();
 * }
 * }</pre>
 *
 * <p>No lease can promise that nobody else holds the lock: this program may be paused between {@link #check()} and the next line. Pass
 * {@link #token()} to whatever is written to, which refuses what is older.
 *
 * <p>Any thread may use it. A lease that nobody closes is renewed until the program ends.
 */
public class Lease implements AutoCloseable {
    final Tenure tenure;
    final Hold hold;

    Lease(Tenure tenure, Hold hold) {
        this.tenure = tenure;
        this.hold = hold;
    }

    /** The name of what is held. */
    public final String name() {
        return hold.name;
    }

    /** The fencing token: larger than that of every earlier grant of this name. */
    public final long token() {
        return hold.token;
    }

    /** The id of this acquisition: 32 hexadecimal digits. With the token it makes the headers that resources check. */
    public final String claim() {
        return hold.claim;
    }

    /**
     * The number of the slot: from 0 up to the capacity.
     *
     * @throws IllegalStateException if it is not the lease of a slot pool
     */
    public final int slot() {
        if (hold.slot == null) {
            throw new IllegalStateException("\"" + hold.name + "\" is no slot pool");
        }
        return hold.slot;
    }

    /** How long until it is lost, if no renewal is answered until then; zero once it is over. No round trip. */
    public final Duration expiresIn() {
        return hold.isHeld() ? Duration.ofNanos(Math.max(0, hold.deadline() - tenure.clock().now())) : Duration.ZERO;
    }

    /** Whether it is lost. False of one that was released. No round trip. */
    public final boolean isLost() {
        return hold.lossNow() != null;
    }

    /**
     * Does nothing while it is held. No round trip: cheap enough for each turn of a loop.
     *
     * @throws LostException once it is lost, and from then on always
     * @throws IllegalStateException if it was released
     */
    public final void check() {
        if (hold.isHeld()) {
            return;
        }
        // After that look: it may be lost in between, and is not held again.
        LostException loss = hold.lossNow();
        if (loss != null) {
            throw loss;
        }
        throw new IllegalStateException("the lease of \"" + hold.name + "\" was released");
    }

    /**
     * Has a callback hear of its loss, once, on a thread of its own; at once if it is lost already, and never after a release.
     *
     * @return this lease
     */
    public final Lease onLost(Consumer<LostException> callback) {
        hold.onLost(callback);
        return this;
    }

    /**
     * Releases it: one round trip. An interrupt does not end the call.
     *
     * @return whether it was held until now, as the store says
     * @throws UnavailableException if nobody has answered for 2 s: the release goes on in the background, and nobody may work under it
     */
    public final boolean release() {
        boolean wasHeld = hold.letGo();
        return wasHeld ? tenure.release(hold) : false;
    }

    /**
     * Releases it, if that was not done. A release that nobody answers goes on in the background: the work is done.
     *
     * @throws LostException if it was lost before, or the store has ended it: the work was not protected to its end
     */
    @Override
    public void close() {
        LostException loss = hold.lossNow();
        if (loss != null) {
            // Once: what is closed again, or after a callback has handled the loss, is over.
            if (hold.tellOnce()) {
                // One of its own: what the body of a `try` has thrown cannot be suppressed by itself.
                throw new LostException(loss);
            }
            return;
        }
        try {
            if (hold.letGo() && !tenure.release(hold)) {
                throw new LostException("the lease was lost: the store had ended it before it was released", hold.name);
            }
        } catch (UnavailableException e) {
            System.getLogger("dev.tenure").log(System.Logger.Level.DEBUG, "the release goes on: {0}", e.getMessage());
        }
    }

    /** Its name, token and what is left of it. */
    @Override
    public String toString() {
        String state = hold.isHeld() ? expiresIn().toMillis() + " ms left" : "over";
        return getClass().getSimpleName() + "[" + hold.name + ", token " + hold.token + ", " + state + "]";
    }
}
