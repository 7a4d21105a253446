package dev.tenure;

import java.util.ArrayList;
import java.util.List;
import java.util.function.Consumer;

/**
 * A grant, as this client may believe in it.
 *
 * <p>Invariants: the deadline is counted from when an answered request was sent; one that has passed is never moved; whoever sees it pass
 * first ends the hold for all, and nothing revives it.
 */
final class Hold {
    private enum State {
        HELD,
        LOST,
        RELEASED
    }

    final String name;
    final String claim;
    final long token;
    /** Null: it is not one of a slot pool. */
    final Integer slot;
    /** A delivery of this queue, which has routes of its own. */
    final boolean isDelivery;
    /** Who took it. */
    final Thread owner = Thread.currentThread();

    private final Clock clock;
    private State state = State.HELD;
    private LostException loss;
    private boolean isTold;
    private long deadline;
    /** When the request was sent that the deadline is counted from. */
    private long countedFrom;
    private long ttlSeen;
    private List<Consumer<LostException>> callbacks = new ArrayList<>();
    private Consumer<Hold> ended = hold -> {};

    // Of the keeper, under its lock.
    long dueAt;
    boolean isRenewing;
    long renewAt;

    Hold(Clock clock, String name, String claim, long token, Integer slot, boolean isDelivery, long sent, long expiresMs) {
        this.clock = clock;
        this.name = name;
        this.claim = claim;
        this.token = token;
        this.slot = slot;
        this.isDelivery = isDelivery;
        count(sent, expiresMs);
    }

    private void count(long sent, long expiresMs) {
        countedFrom = sent;
        ttlSeen = Math.max(ttlSeen, expiresMs * 1_000_000);
        deadline = deadline(sent, expiresMs);
    }

    /** Until when an answer may be believed. The clocks of the server and of this machine do not run alike: 1 % and 2 ms. */
    static long deadline(long sent, long expiresMs) {
        long nanos = Math.min(expiresMs, 1L << 40) * 1_000_000;
        return sent + nanos - nanos / 100 - 2_000_000;
    }

    /** The answer to a renewal that was sent then. False: it came too late. */
    synchronized boolean renewed(long sent, long expiresMs) {
        if (lossNow() != null || state != State.HELD) {
            return false;
        }
        // An answer that was overtaken by a later one says less.
        if (sent >= countedFrom) {
            count(sent, expiresMs);
        }
        return lossNow() == null;
    }

    synchronized long deadline() {
        return deadline;
    }

    /** How long it was granted for, at most: what the store may still keep when nobody renews. */
    synchronized long ttlSeen() {
        return ttlSeen;
    }

    /** Why it is lost; null if it is held, or was released. */
    synchronized LostException lossNow() {
        if (state == State.HELD && clock.now() >= deadline) {
            lose("not renewed in time", null);
        }
        return loss;
    }

    /** Whether work under it is protected now. */
    synchronized boolean isHeld() {
        return lossNow() == null && state == State.HELD;
    }

    /** Ends it without its user. */
    synchronized void lose(String why, TenureException cause) {
        if (state != State.HELD) {
            return;
        }
        state = State.LOST;
        loss = new LostException("the lease was lost: " + why, cause == null ? null : cause.hint(), name, cause == null ? null : cause.requestId());
        List<Consumer<LostException>> told = callbacks;
        callbacks = new ArrayList<>();
        told.forEach(this::tell);
        ended.accept(this);
    }

    /** Its user lets go. True: it was held until now. */
    synchronized boolean letGo() {
        if (lossNow() != null || state != State.HELD) {
            return false;
        }
        state = State.RELEASED;
        callbacks = new ArrayList<>();
        return true;
    }

    /** Whether nobody has been told of the loss by {@code close} yet. */
    synchronized boolean tellOnce() {
        boolean isFirst = !isTold;
        isTold = true;
        return isFirst;
    }

    synchronized void onLost(Consumer<LostException> callback) {
        if (state == State.LOST) {
            tell(callback);
        } else if (state == State.HELD) {
            callbacks.add(callback);
        }
    }

    /** Who cleans up after a loss. It is called under the lock of the hold, and must not wait. */
    synchronized void onEnded(Consumer<Hold> ended) {
        this.ended = ended;
        if (state == State.LOST) {
            ended.accept(this);
        }
    }

    private void tell(Consumer<LostException> callback) {
        LostException told = loss;
        // On a thread of its own: one that waits holds up neither renewals nor other callbacks.
        Threads.pool().execute(() -> callback.accept(told));
    }
}
