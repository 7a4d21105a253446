package dev.tenure;

import dev.tenure.Api.Reply;
import dev.tenure.Api.Unanswered;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.TimeUnit;

/** Work in line: in order within each group, with a lease on each item that is handed out. It does not change: each setting gives another one. */
public final class TenureQueue {
    private static final Duration POLL = Duration.ofSeconds(10);

    private final Tenure tenure;
    private final String name;
    private final Map<String, Object> orders;

    TenureQueue(Tenure tenure, String name, Map<String, Object> orders) {
        this.tenure = tenure;
        this.name = name;
        this.orders = orders;
    }

    private TenureQueue with(String field, Object value) {
        Map<String, Object> more = new LinkedHashMap<>(orders);
        more.put(field, value);
        return new TenureQueue(tenure, name, more);
    }

    /** The name. */
    public String name() {
        return name;
    }

    /** How long a delivery lives without renewal: 30 s if nothing else is said. */
    public TenureQueue ttl(Duration ttl) {
        return with("ttl_ms", ttl.toMillis());
    }

    /** The least time between two items. */
    public TenureQueue interval(Duration period) {
        return with("interval_ms", period.toMillis()).with("interval_of", "queue");
    }

    /** The least time between two items of one group. */
    public TenureQueue groupInterval(Duration period) {
        return with("interval_ms", period.toMillis()).with("interval_of", "group");
    }

    /** An item that was handed out so often is a dead letter. */
    public TenureQueue attemptsMax(int attempts) {
        return with("attempts_max", (long) attempts);
    }

    int attemptsMax() {
        return orders.get("attempts_max") instanceof Long most ? most.intValue() : 0;
    }

    /**
     * An item to push. It does not change: each setting gives another one.
     *
     * @param payload up to 256 KiB
     * @param group its items are handed out one at a time, in order; null: none
     * @param delay for how long it is held back, and its group with it
     * @param dedup an id under which it is pushed only once; null: one of its own, so that a lost answer is no second item
     * @param context up to 128 characters that travel with it; null: none
     */
    public record Push(byte[] payload, String group, Duration delay, String dedup, String context) {
        /** An item. */
        public static Push of(byte[] payload) {
            return new Push(payload, null, Duration.ZERO, null, null);
        }

        /** An item of text. */
        public static Push of(String payload) {
            return of(payload.getBytes(StandardCharsets.UTF_8));
        }

        /** The same in a group. */
        public Push group(String group) {
            return new Push(payload, group, delay, dedup, context);
        }

        /** The same after a while. */
        public Push delay(Duration delay) {
            return new Push(payload, group, delay, dedup, context);
        }

        /** The same, only once. */
        public Push dedup(String id) {
            return new Push(payload, group, delay, id, context);
        }

        /** The same with a context. */
        public Push context(String context) {
            return new Push(payload, group, delay, dedup, context);
        }
    }

    /**
     * What became of a push.
     *
     * @param isDuplicate whether it was in line already, under its dedup id
     */
    public record Pushed(long item, boolean isDuplicate) {}

    /** Puts an item of text in line. */
    public Pushed push(String payload) {
        return push(Push.of(payload));
    }

    /**
     * Puts an item in line. One round trip; a request that is not answered is repeated under the same dedup id.
     *
     * @throws UnavailableException if nobody knows whether it is in line; with a dedup id of your own it can be pushed again
     */
    public Pushed push(Push push) {
        // The store keeps dedup ids for at least five minutes, and requests are repeated for seconds.
        String dedup = push.dedup() == null ? Api.newId() : push.dedup();
        Map<String, Object> item = Api.body(
                "payload_base64", Base64.getEncoder().encodeToString(push.payload()),
                "group", push.group(),
                "delay_ms", push.delay().toMillis(),
                "dedup", dedup,
                "context", push.context());
        Transport.Request request = Api.request("POST", "/v1/queue/push", Api.body("queue", name, "items", List.of(item)));
        Reply reply = tenure.api().repeat(request, name);
        try {
            Map<?, ?> pushed = Api.object(Api.list(reply.json()).get(0));
            boolean wasThere = Boolean.TRUE.equals(pushed.get("is_duplicate"));
            // Under an id of its own, a copy of this very request was there.
            return new Pushed(Api.whole(pushed, "item"), wasThere && push.dedup() != null);
        } catch (Unanswered | IndexOutOfBoundsException e) {
            throw Api.notUnderstood(e).asUnavailable(name);
        }
    }

    /**
     * Takes an item, and waits for one for so long; zero does not wait.
     *
     * @return empty if none came
     * @throws InterruptedException if the thread is interrupted: what was on its way comes again after its ttl
     * @throws UnavailableException if nobody answers for the patience of the client (15 s)
     */
    public Optional<Delivery> take(Duration wait) throws InterruptedException {
        List<Delivery> taken = take(wait, 1);
        return taken.isEmpty() ? Optional.empty() : Optional.of(taken.get(0));
    }

    /** As {@link #take(Duration)}, and what else is ready with it, up to 16 items in all. */
    public List<Delivery> take(Duration wait, int most) throws InterruptedException {
        Api api = tenure.api();
        long answeredAt = api.clock().now();
        long until = answeredAt + Math.min(TimeUnit.DAYS.toNanos(3650), Math.max(0, wait.toNanos()));
        Api.Backoff backoff = new Api.Backoff();
        for (;;) {
            long left = Math.max(0, until - api.clock().now());
            Duration poll = Duration.ofNanos(Math.min(POLL.toNanos(), left));
            Map<String, Object> body = new LinkedHashMap<>(orders);
            body.put("queue", name);
            body.put("max", (long) most);
            body.put("poll_ms", poll.toMillis());
            try {
                Reply reply = api.onceInterruptibly(Api.request("POST", "/v1/queue/take", body), poll.plus(Api.ANSWER_MAX));
                answeredAt = api.clock().now();
                backoff.reset();
                List<Delivery> taken = reply.status() == 204 ? List.of() : deliveries(reply);
                if (!taken.isEmpty() || api.clock().now() >= until) {
                    return taken;
                }
            } catch (Unanswered e) {
                // If an item was on its way, it comes again after its ttl.
                long pause = backoff.next(e);
                long after = api.clock().now() + pause;
                if (after >= until || after - answeredAt >= api.patience()) {
                    throw e.asUnavailable(name);
                }
                TimeUnit.NANOSECONDS.sleep(pause);
            }
        }
    }

    private List<Delivery> deliveries(Reply reply) throws Unanswered, InterruptedException {
        List<Delivery> deliveries = new ArrayList<>();
        boolean isDone = false;
        try {
            add(reply, deliveries);
            isDone = true;
            return deliveries;
        } finally {
            if (!isDone) {
                // Nobody gets them: they must not be renewed for ever.
                deliveries.forEach(Delivery::letGo);
            }
        }
    }

    private void add(Reply reply, List<Delivery> deliveries) throws Unanswered, InterruptedException {
        for (Object item : Api.list(reply.json())) {
            Map<?, ?> fields = Api.object(item);
            Hold hold = hold(fields, Api.text(fields, "claim"), reply);
            if (hold != null) {
                byte[] payload = Api.bytes(fields, "payload");
                deliveries.add(new Delivery(tenure, this, tenure.hold(hold), payload, fields));
            }
        }
    }

    /**
     * The lease of an item. The request may have waited for long before the item came, so a renewal tells how much is left of it. Null: it
     * is over, and comes again.
     */
    private Hold hold(Map<?, ?> fields, String claim, Reply taken) throws Unanswered, InterruptedException {
        Api api = tenure.api();
        long token = Api.whole(fields, "token");
        Hold hold = new Hold(api.clock(), name, claim, token, null, true, taken.sent(), Api.whole(fields, "expires_in_ms"));
        if (api.clock().now() - taken.sent() <= hold.ttlSeen() / 3 && hold.isHeld()) {
            return hold;
        }
        Transport.Request request = Api.request("POST", "/v1/deliveries/" + claim + "/renew", Api.body("queue", name));
        try {
            Reply reply = api.onceInterruptibly(request, Duration.ofSeconds(2));
            hold = new Hold(api.clock(), name, claim, token, null, true, reply.sent(), Api.whole(reply.fields(), "expires_in_ms"));
            return hold.isHeld() ? hold : null;
        } catch (LostException | Unanswered e) {
            // It comes again after its ttl.
            return null;
        }
    }

    /** What works on items. What it throws has its item handed out again, later each time. */
    @FunctionalInterface
    public interface Handler {
        /** Works on one item, which is acknowledged when this returns, unless it was settled here. */
        void handle(Delivery delivery) throws Exception;
    }

    /** Has a handler called with each item, in so many threads (virtual ones from Java 21 on), until the listener is closed. */
    public QueueListener listen(int parallel, Handler handler) {
        return new QueueListener(this, parallel, handler);
    }
}
