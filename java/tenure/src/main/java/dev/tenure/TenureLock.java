package dev.tenure;

import dev.tenure.Api.Reply;
import dev.tenure.Api.Unanswered;
import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Lock;

/**
 * A lock by name: a mutex, a side of a read-write lock, units of a semaphore, a slot of a pool. It does not change: each setting gives another
 * one. Any number of threads may use it, each for an acquisition of its own.
 *
 * <p>It is not re-entrant: who holds a mutex and asks for it again waits for himself.
 */
public final class TenureLock {
    /** How long one request waits: short, so that a connection that has died unnoticed is not waited for much longer. */
    private static final Duration POLL = Duration.ofSeconds(10);
    /** A request that waits is answered no sooner, unless something is up. */
    private static final long QUICK = 100_000_000;

    private final Tenure tenure;
    private final String name;
    private final Map<String, Object> fields;

    TenureLock(Tenure tenure, String name, Map<String, Object> fields) {
        this.tenure = tenure;
        this.name = name;
        this.fields = fields;
    }

    private TenureLock with(String field, Object value) {
        Map<String, Object> more = new LinkedHashMap<>(fields);
        more.put(field, value);
        return new TenureLock(tenure, name, more);
    }

    /** The name. */
    public String name() {
        return name;
    }

    /** How long it is held without renewal: 100 ms to 24 h; 30 s if nothing else is said. */
    public TenureLock ttl(Duration ttl) {
        return with("ttl_ms", ttl.toMillis());
    }

    /** Ends the lease after that, renewed or not. */
    public TenureLock maxHold(Duration period) {
        return with("max_hold_ms", period.toMillis());
    }

    /** Keeps it from others for so long after the grant, even if it is released. */
    public TenureLock minHold(Duration period) {
        return with("min_hold_ms", period.toMillis());
    }

    /** Keeps it from others for so long after its holder has vanished. */
    public TenureLock lockDelay(Duration period) {
        return with("lock_delay_ms", period.toMillis());
    }

    /** A text that others are shown. */
    public TenureLock label(String label) {
        return with("label", label);
    }

    /** The token will be larger than that one. */
    public TenureLock floor(long token) {
        return with("floor", token);
    }

    /**
     * Takes it, and waits for as long as it takes, in the order in which claims came. One round trip when it is free.
     *
     * @throws InterruptedException if the thread is interrupted; the claim is withdrawn
     * @throws UnavailableException if nobody answers for the patience of the client (15 s)
     * @throws TenureException for what cannot be right ({@link Kind#INVALID}, {@link Kind#CONFLICT}, {@link Kind#REFUSED}, ...)
     */
    public Lease acquire() throws InterruptedException {
        return new Lease(tenure, claim(null));
    }

    /**
     * As {@link #acquire()}, for so long. What is not answered by then is waited for up to 2 s more, and then withdrawn.
     *
     * @throws WaitTimeoutException if others hold it for longer
     * @throws InterruptedException if the thread is interrupted; the claim is withdrawn
     */
    public Lease acquire(Duration wait) throws InterruptedException {
        return new Lease(tenure, claim(wait));
    }

    /**
     * Takes it if it is free and nobody waits. One round trip. An interrupt does not end the call.
     *
     * @return empty if others hold it or wait
     * @throws UnavailableException if nobody answers; the claim is withdrawn
     */
    public Optional<Lease> tryAcquire() {
        return tryClaim().map(hold -> new Lease(tenure, hold));
    }

    /**
     * The same as a lock of {@code java.util.concurrent}, for code that is written for one. It belongs to the thread that took it, and is not
     * re-entrant: a thread that holds it and locks it again gets an {@code IllegalMonitorStateException}. Keep the object: each knows
     * its own holders only. {@code unlock} throws {@link LostException} if the lease was lost before, and {@code lock} what {@link #acquire()} throws.
     */
    public Lock asLock() {
        return new ThreadLock(this);
    }

    Hold claim(Duration wait) throws InterruptedException {
        return new Claiming(wait).run();
    }

    /** A lease to load under, or a value that is fresh. */
    Object turn() throws InterruptedException {
        Claiming claiming = new Claiming(null);
        Hold hold = claiming.run();
        return hold == null ? claiming.found : hold;
    }

    TenureLock unlessFresh() {
        return with("unless_fresh", true);
    }

    Optional<Hold> tryClaim() {
        try {
            return Optional.ofNullable(new Claiming(Duration.ZERO).tryRun());
        } catch (InterruptedException e) {
            throw new AssertionError("interrupts are kept for later", e);
        }
    }

    /** One acquisition under way. */
    private final class Claiming {
        private final Api api = tenure.api();
        private final Duration wait;
        private final long until;
        private final Api.Backoff backoff = new Api.Backoff();
        /** A value that is fresh answers as well. */
        private final boolean flies = Boolean.TRUE.equals(fields.get("unless_fresh"));
        private SingleFlight.Fetched found;
        private String id = Api.newId();
        private boolean isSent;
        private boolean hasAsked;
        private long answeredAt = api.clock().now();

        Claiming(Duration wait) {
            this.wait = wait;
            // No program waits for 146 years.
            this.until = wait == null ? Long.MAX_VALUE / 2 : answeredAt + Math.min(TimeUnit.DAYS.toNanos(3650), Math.max(0, wait.toNanos()));
        }

        Hold run() throws InterruptedException {
            boolean isDone = false;
            tenure.waiting(1);
            try {
                for (;;) {
                    Hold hold = turn();
                    if (hold != null) {
                        tenure.hold(hold);
                        isDone = true;
                        return hold;
                    }
                    if (found != null) {
                        isDone = true;
                        return null;
                    }
                }
            } finally {
                tenure.waiting(-1);
                if (!isDone) {
                    withdraw();
                }
            }
        }

        /** Null: others hold it. */
        Hold tryRun() throws InterruptedException {
            boolean isDone = false;
            try {
                Hold hold = null;
                // Under an id that was used up by a copy of the request, or granted too late, once more.
                for (int attempt = 0; attempt < 3 && hold == null; attempt++) {
                    try {
                        isSent = true;
                        hold = accepted(api.repeat(request(null), name), false);
                        if (hold == null) {
                            renamed();
                        }
                    } catch (TenureException e) {
                        if (e.kind() == Kind.BUSY) {
                            // A copy that is still on its way must not be granted when nobody waits for it.
                            isDone = !Api.isRepeated(e);
                            return null;
                        }
                        if (e.kind() != Kind.FINISHED) {
                            throw e;
                        }
                        renamed();
                    } catch (Unanswered e) {
                        throw e.asUnavailable(name);
                    }
                }
                if (hold == null) {
                    throw new UnavailableException("answers come too late to be of use", "is the ttl longer than a round trip?", name, null, null);
                }
                tenure.hold(hold);
                isDone = true;
                return hold;
            } finally {
                if (!isDone) {
                    withdraw();
                }
            }
        }

        private Transport.Request request(Duration poll) {
            Map<String, Object> body = new LinkedHashMap<>(fields);
            body.put("name", name);
            if (poll == null) {
                body.put("wait", false);
            } else {
                body.put("poll_ms", poll.toMillis());
            }
            return Api.request("PUT", "/v1/claims/" + id, body);
        }

        /** Asks once, and waits in it. Null: not yet. */
        private Hold turn() throws InterruptedException {
            long now = api.clock().now();
            long left = until - now;
            if (left <= 0 && hasAsked) {
                withdrawNow();
                throw new WaitTimeoutException(name, wait);
            }
            Duration poll = Duration.ofNanos(Math.max(0, Math.min(POLL.toNanos(), left)));
            Transport.Request request = request(poll);
            try {
                isSent = true;
                hasAsked = true;
                Reply reply = api.onceInterruptibly(request, poll.plusSeconds(2));
                answeredAt = api.clock().now();
                if (reply.status() == 202) {
                    if (!id.equals(reply.fields().get("claim"))) {
                        throw Api.notUnderstood(null);
                    }
                    if (answeredAt - now >= Math.min(poll.toNanos(), QUICK)) {
                        backoff.reset();
                    } else {
                        // It did not wait, as it was told to: the server ends, or a copy of this request has come after it.
                        TimeUnit.NANOSECONDS.sleep(Math.min(Math.max(0, until - answeredAt), backoff.next(null)));
                    }
                    return null;
                }
                if (flies && "fresh".equals(reply.fields().get("state"))) {
                    found = SingleFlight.fetched(reply.fields());
                    return null;
                }
                Hold hold = accepted(reply, true);
                if (hold == null) {
                    renamed();
                }
                return hold;
            } catch (Unanswered e) {
                long pause = backoff.next(e);
                long after = api.clock().now() + pause;
                if (after >= until || after - answeredAt >= api.patience()) {
                    throw e.asUnavailable(name);
                }
                TimeUnit.NANOSECONDS.sleep(pause);
                return null;
            } catch (TenureException e) {
                if (e.kind() != Kind.FINISHED && e.kind() != Kind.LOST) {
                    throw e;
                }
                // Nothing is held under that id, and nothing will be.
                renamed();
                TimeUnit.NANOSECONDS.sleep(Math.min(Math.max(0, left), backoff.next(null)));
                return null;
            }
        }

        /** Gives the id up, and takes another. */
        private void renamed() {
            withdraw();
            id = Api.newId();
            isSent = false;
        }

        /** Ends the claim, wherever it is, if anybody can have heard of it. */
        private void withdraw() {
            if (isSent) {
                tenure.keeper().releaseLater(name, id, Math.max(TimeUnit.SECONDS.toNanos(20), 2 * ttl()));
            }
        }

        /** The same, so that nobody waits behind a claim that was given up; in the background if it is not answered. */
        private void withdrawNow() {
            if (!isSent) {
                return;
            }
            try {
                api.once(Tenure.release(name, id), Duration.ofSeconds(2));
                isSent = false;
            } catch (Unanswered | TenureException e) {
                withdraw();
                isSent = false;
            }
        }

        private long ttl() {
            return TimeUnit.MILLISECONDS.toNanos(fields.get("ttl_ms") instanceof Long ttl ? ttl : 30_000);
        }

        /** What a grant is worth. Null: it was over before it came. */
        private Hold accepted(Reply reply, boolean isInterruptible) throws Unanswered, InterruptedException {
            Map<?, ?> fields = reply.fields();
            if (!"granted".equals(fields.get("state")) || !id.equals(fields.get("claim")) || !name.equals(fields.get("name"))) {
                throw Api.notUnderstood(null);
            }
            long expires = Api.whole(fields, "expires_in_ms");
            Integer slot = fields.get("slot") instanceof Long number ? Integer.valueOf(number.intValue()) : null;
            Hold hold = new Hold(api.clock(), name, id, Api.whole(fields, "token"), slot, false, reply.sent(), expires);
            long age = api.clock().now() - reply.sent();
            // A grant that was waited for, or that was long on its way, has less left than it says: a renewal tells how much.
            if (Api.whole(fields, "waited_ms") > 0 || age > hold.ttlSeen() / 3) {
                return renewed(hold, isInterruptible);
            }
            return hold;
        }

        /** Null: it has ended. */
        private Hold renewed(Hold granted, boolean isInterruptible) throws Unanswered, InterruptedException {
            Transport.Request request = Api.request("POST", "/v1/claims/" + id + "/renew", Api.body("name", name));
            try {
                Reply reply = isInterruptible
                        ? api.onceInterruptibly(request, Duration.ofSeconds(2))
                        : api.once(request, Duration.ofSeconds(2));
                Map<?, ?> fields = reply.fields();
                if (!"held".equals(fields.get("state")) || !id.equals(fields.get("claim")) || Api.whole(fields, "token") != granted.token) {
                    throw Api.notUnderstood(null);
                }
                long expires = Api.whole(fields, "expires_in_ms");
                Hold hold = new Hold(api.clock(), name, id, granted.token, granted.slot, false, reply.sent(), expires);
                return hold.isHeld() ? hold : null;
            } catch (LostException e) {
                return null;
            }
        }
    }
}
