package dev.tenure;

import dev.tenure.Api.Reply;
import dev.tenure.Api.Unanswered;
import java.lang.System.Logger;
import java.lang.System.Logger.Level;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.Deque;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.PriorityQueue;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.ReentrantLock;

/**
 * Renews all leases of a client: one daemon thread, which waits for nothing but its clock. Locks are renewed many in one request.
 *
 * <p>If this thread is late, or is gone, nobody believes too long: each look at a lease compares its deadline with the clock.
 */
final class Keeper {
    private static final Logger LOG = System.getLogger("dev.tenure");
    /** What the server takes in one request. */
    private static final int BATCH_MAX = 256;
    /** A line that is shorter is not worth looking through. */
    private static final int LINE_MIN = 64;
    /** The thread looks at its clock that often, since a wait stands still while the machine sleeps. */
    private static final long LOOK_EVERY = 1_000_000_000;
    /** Releases that were not answered and are repeated. What does not fit ends at its ttl. */
    private static final int RELEASES_MAX = 10_000;

    private final Api api;
    private final Clock clock;
    private final ReentrantLock lock = new ReentrantLock();
    private final Condition changed = lock.newCondition();
    private final PriorityQueue<Due> line = new PriorityQueue<>(Comparator.comparingLong(Due::at));
    private final Set<Hold> holds = new HashSet<>();
    private final Deque<Release> releases = new ArrayDeque<>();
    private final Condition released = lock.newCondition();
    private boolean isClosed;
    private boolean isReleasing;
    private Thread renewing;
    private Thread releasing;
    private long renewals;
    private long lost;

    private record Due(long at, Hold hold) {}

    private record Release(Transport.Request request, long until) {}

    Keeper(Api api) {
        this.api = api;
        this.clock = api.clock();
    }

    /** Renews it from now on. */
    void add(Hold hold) {
        lock.lock();
        try {
            if (isClosed) {
                throw new UnavailableException("the client is closed", null, hold.name, null, null);
            }
            holds.add(hold);
            hold.renewAt = floor(clock.now() + third(hold), third(hold) / 8);
            schedule(hold);
            if (renewing == null) {
                renewing = Threads.daemon("tenure-renewal", this::run);
                renewing.start();
            }
        } finally {
            lock.unlock();
        }
        // Outside of the lock: whoever loses a hold has that one's lock, and wants this one.
        hold.onEnded(this::isLost);
    }

    /** Renews it no longer. */
    void remove(Hold hold) {
        lock.lock();
        try {
            forget(hold);
        } finally {
            lock.unlock();
        }
    }

    /** Under the lock. */
    private void forget(Hold hold) {
        holds.remove(hold);
        // What stands in line for what is over stays until its time, which may be hours: not more of it than of the rest.
        if (line.size() > LINE_MIN + 4 * holds.size()) {
            line.removeIf(due -> !holds.contains(due.hold()) || due.hold().dueAt != due.at());
        }
    }

    /** What is held, as far as this client knows. */
    List<Hold> holds() {
        lock.lock();
        try {
            return new ArrayList<>(holds);
        } finally {
            lock.unlock();
        }
    }

    long renewals() {
        lock.lock();
        try {
            return renewals;
        } finally {
            lock.unlock();
        }
    }

    long lost() {
        lock.lock();
        try {
            return lost;
        } finally {
            lock.unlock();
        }
    }

    private void isLost(Hold hold) {
        // On another thread: this one has the lock of the hold.
        Threads.pool().execute(() -> {
            lock.lock();
            try {
                forget(hold);
                lost++;
            } finally {
                lock.unlock();
            }
            LOG.log(Level.WARNING, "{0}", hold.lossNow().getMessage());
            if (!hold.isDelivery) {
                // The store may hold it for a while yet; nobody works under it.
                releaseLater(hold.name, hold.claim, hold.ttlSeen());
            }
        });
    }

    private static long third(Hold hold) {
        return Math.max(1, hold.ttlSeen() / 3);
    }

    private static long floor(long at, long grain) {
        return Math.floorDiv(at, Math.max(1, Long.highestOneBit(grain))) * Math.max(1, Long.highestOneBit(grain));
    }

    /** Under the lock. */
    private void schedule(Hold hold) {
        long deadline = hold.deadline();
        hold.dueAt = hold.isRenewing ? deadline : Math.min(hold.renewAt, deadline);
        line.add(new Due(hold.dueAt, hold));
        changed.signalAll();
    }

    private void run() {
        lock.lock();
        try {
            while (!isClosed) {
                try {
                    turn();
                } catch (RuntimeException | Error e) {
                    // Nothing may end this thread: its leases would be lost one after the other.
                    LOG.log(Level.ERROR, "the renewals go on after", e);
                    changed.awaitNanos(LOOK_EVERY / 10);
                }
            }
        } catch (InterruptedException e) {
            // Nobody has this thread; it ends, and the leases with their deadlines.
            LOG.log(Level.ERROR, "the renewals end", e);
        } finally {
            lock.unlock();
        }
    }

    private void turn() throws InterruptedException {
        long now = clock.now();
        List<Hold> due = new ArrayList<>();
        while (!line.isEmpty() && line.peek().at() <= now) {
            Due first = line.poll();
            Hold hold = first.hold();
            if (!holds.contains(hold) || hold.dueAt != first.at()) {
                continue;
            }
            due.add(hold);
            if (now >= hold.deadline()) {
                holds.remove(hold);
            } else {
                hold.isRenewing = true;
                schedule(hold);
            }
        }
        if (due.isEmpty()) {
            long next = line.isEmpty() ? LOOK_EVERY : line.peek().at() - now;
            changed.awaitNanos(Math.min(LOOK_EVERY, next));
            return;
        }
        lock.unlock();
        try {
            send(due, now);
        } finally {
            lock.lock();
        }
    }

    /** Sends renewals, without waiting for them. */
    private void send(List<Hold> due, long now) {
        // By what is left of them: those that have little time must not have others time out with them.
        Map<Integer, List<Hold>> batches = new HashMap<>();
        for (Hold hold : due) {
            if (hold.lossNow() != null) {
                continue;
            }
            if (hold.isDelivery) {
                renewDelivery(hold);
            } else {
                long left = Math.max(1, hold.deadline() - now);
                List<Hold> batch = batches.computeIfAbsent(64 - Long.numberOfLeadingZeros(left), bits -> new ArrayList<>());
                batch.add(hold);
                if (batch.size() == BATCH_MAX) {
                    renew(List.copyOf(batch));
                    batch.clear();
                }
            }
        }
        batches.values().stream().filter(batch -> !batch.isEmpty()).forEach(batch -> renew(List.copyOf(batch)));
    }

    /** How long an answer may take, so that there is time for others if it does not come. */
    private long answerMax(Hold hold) {
        return Math.max(10_000_000, Math.min(Api.ANSWER_MAX.toNanos(), (hold.deadline() - clock.now()) / 3));
    }

    private void renew(List<Hold> batch) {
        List<Object> claims = new ArrayList<>();
        batch.forEach(hold -> claims.add(Api.body("name", hold.name, "claim", hold.claim)));
        Transport.Request request = Api.request("POST", "/v1/claims/renew", Api.body("claims", claims));
        long answerMax = batch.stream().mapToLong(this::answerMax).min().orElseThrow();
        api.begin(request, answerMax, (reply, failure) -> {
            Map<String, Map<?, ?>> answers = new HashMap<>();
            try {
                if (failure == null) {
                    for (Object answer : Api.list(reply.fields().get("claims"))) {
                        answers.put(Api.text(Api.object(answer), "claim"), Api.object(answer));
                    }
                }
            } catch (Unanswered e) {
                answers.clear();
            }
            for (Hold hold : batch) {
                Map<?, ?> answer = answers.get(hold.claim);
                boolean isAnswered = answer != null && hold.name.equals(answer.get("name")) && heard(hold, answer, reply.sent());
                again(hold, isAnswered, failure);
            }
        });
    }

    /** What an answer says of a hold. False: nothing. */
    private static boolean heard(Hold hold, Map<?, ?> answer, long sent) {
        Object state = answer.get("state");
        if ("lost".equals(state) || "waiting".equals(state)) {
            // What waits again was granted by a store that has forgotten it.
            hold.lose("the store has ended it", answer.get("problem") instanceof Map<?, ?> problem ? TenureException.of(problem) : null);
            return true;
        }
        if (!"held".equals(state) || !(answer.get("expires_in_ms") instanceof Long expires) || expires < 0) {
            return false;
        }
        if (answer.get("token") instanceof Long token && token != hold.token) {
            hold.lose("another grant has its place", null);
            return true;
        }
        hold.renewed(sent, expires);
        return true;
    }

    private void renewDelivery(Hold hold) {
        Transport.Request request = Api.request("POST", "/v1/deliveries/" + hold.claim + "/renew", Api.body("queue", hold.name));
        api.begin(request, answerMax(hold), (reply, failure) -> {
            boolean isAnswered = false;
            if (failure instanceof LostException lost) {
                hold.lose("the store has ended it", lost);
                isAnswered = true;
            } else if (reply != null && reply.json() instanceof Map<?, ?> answer) {
                isAnswered = heard(hold, answer, reply.sent());
            }
            again(hold, isAnswered, failure);
        });
    }

    /** When the next renewal is due. */
    private void again(Hold hold, boolean isAnswered, Exception failure) {
        if (!hold.isHeld()) {
            remove(hold);
            return;
        }
        long now = clock.now();
        long left = hold.deadline() - now;
        long pause = third(hold);
        if (isAnswered) {
            pause = Math.min(pause, Math.max(1_000_000, left / 3));
        } else {
            LOG.log(Level.DEBUG, "renews \"{0}\" again: {1}", hold.name, failure);
            long asked = failure instanceof Unanswered unanswered ? unanswered.retryAfter() : 0;
            // As the server asks, but not so late that one more failure loses the lease.
            pause = Math.min(Math.max(asked, Math.min(1_000_000_000, left / 10)), left / 2);
        }
        lock.lock();
        try {
            if (isAnswered) {
                renewals++;
            }
            hold.isRenewing = false;
            // On a grid, so that those of one ttl are renewed by one request.
            hold.renewAt = isAnswered ? floor(now + pause, pause / 8) : now + pause;
            schedule(hold);
        } finally {
            lock.unlock();
        }
    }

    /** Has a claim end, in the background: repeated until it is answered, or has ended by itself. */
    void releaseLater(String name, String claim, long forNanos) {
        later(Tenure.release(name, claim), forNanos);
    }

    void later(Transport.Request request, long forNanos) {
        lock.lock();
        try {
            if (releases.size() >= RELEASES_MAX) {
                return;
            }
            releases.add(new Release(request, clock.now() + forNanos));
            if (releasing == null) {
                releasing = Threads.daemon("tenure-release", this::releases);
                releasing.start();
            }
            released.signalAll();
        } finally {
            lock.unlock();
        }
    }

    private void releases() {
        Api.Backoff backoff = new Api.Backoff();
        for (;;) {
            Release release;
            lock.lock();
            try {
                isReleasing = false;
                released.signalAll();
                while (releases.isEmpty()) {
                    if (isClosed) {
                        return;
                    }
                    released.await();
                }
                release = releases.poll();
                isReleasing = true;
            } catch (InterruptedException e) {
                return;
            } finally {
                lock.unlock();
            }
            try {
                api.once(release.request(), Duration.ofSeconds(2));
                backoff.reset();
            } catch (TenureException e) {
                LOG.log(Level.DEBUG, "a release is refused, and the hold ends at its ttl: {0}", e.getMessage());
            } catch (Unanswered e) {
                again(release, backoff.next(e));
            }
        }
    }

    private void again(Release release, long pause) {
        lock.lock();
        try {
            if (clock.now() + pause < release.until() && !isClosed) {
                releases.addLast(release);
                released.awaitNanos(pause);
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        } finally {
            lock.unlock();
        }
    }

    /** Waits until nothing is left to release, but not for ever. */
    void drain(Duration most) {
        long until = System.nanoTime() + most.toNanos();
        boolean wasInterrupted = false;
        lock.lock();
        try {
            while (!releases.isEmpty() || isReleasing) {
                long left = until - System.nanoTime();
                if (left <= 0) {
                    break;
                }
                try {
                    released.awaitNanos(Math.min(left, TimeUnit.MILLISECONDS.toNanos(50)));
                } catch (InterruptedException e) {
                    wasInterrupted = true;
                }
            }
        } finally {
            lock.unlock();
            if (wasInterrupted) {
                Thread.currentThread().interrupt();
            }
        }
    }

    /** Ends both threads. What is held then ends at its ttl. */
    void close() {
        lock.lock();
        try {
            isClosed = true;
            changed.signalAll();
            released.signalAll();
        } finally {
            lock.unlock();
        }
    }
}
