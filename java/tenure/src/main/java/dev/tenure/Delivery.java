package dev.tenure;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Map;
import java.util.function.Consumer;

/**
 * An item that was handed out, and the lease on it, which is renewed until it is settled.
 *
 * <p>Settle it by {@link #ack()}, {@link #retry(String)}, {@link #fail(String)} or {@link #putBack()}; {@link #close()} retries what was
 * not settled. An item may come twice: work on it must bear that, or be fenced by {@link #token()}.
 */
public final class Delivery implements AutoCloseable {
    private final Tenure tenure;
    private final TenureQueue queue;
    private final Hold hold;
    private final byte[] payload;
    private final Map<?, ?> fields;

    Delivery(Tenure tenure, TenureQueue queue, Hold hold, byte[] payload, Map<?, ?> fields) {
        this.tenure = tenure;
        this.queue = queue;
        this.hold = hold;
        this.payload = payload;
        this.fields = fields;
    }

    private long number(String name) {
        return fields.get(name) instanceof Long number ? number : 0;
    }

    private String text(String name) {
        return fields.get(name) instanceof String text ? text : null;
    }

    /** Its number in the queue. */
    public long item() {
        return number("item");
    }

    /** What was pushed. */
    public byte[] payload() {
        return payload.clone();
    }

    /** What was pushed, as text. */
    public String text() {
        return new String(payload, StandardCharsets.UTF_8);
    }

    /** Its group; null if it has none. */
    public String group() {
        return text("group");
    }

    /** What travels with it; null if nothing does. */
    public String context() {
        return text("context");
    }

    /** How often it has been handed out, this time included. */
    public int attempt() {
        return (int) number("attempt");
    }

    /** For how long it had been due. */
    public Duration age() {
        return Duration.ofMillis(number("age_ms"));
    }

    /** The fencing token: larger than those of the group's earlier deliveries. */
    public long token() {
        return hold.token;
    }

    /** The id of this delivery: 32 hexadecimal digits. */
    public String claim() {
        return hold.claim;
    }

    /** Whether it is over without having been settled: it is or will be handed out again. No round trip. */
    public boolean isLost() {
        return hold.lossNow() != null;
    }

    /** Does nothing while it is held. No round trip. Throws {@link LostException} once it is lost. */
    public void check() {
        LostException loss = hold.lossNow();
        if (loss != null) {
            throw loss;
        }
    }

    /** Has a callback hear of its loss, once, on a thread of its own. */
    public Delivery onLost(Consumer<LostException> callback) {
        hold.onLost(callback);
        return this;
    }

    /** Whether it was settled, or is lost. */
    public boolean isOver() {
        return !hold.isHeld();
    }

    /**
     * It is done; the next one of its group can be handed out. One round trip.
     *
     * @throws LostException if it came too late: the item is or will be handed out again
     * @throws UnavailableException if nobody knows whether it is done
     */
    public void ack() {
        settle("ack", null, null);
    }

    /** Has it handed out again, later after each attempt. Its group waits meanwhile. */
    public void retry(String reason) {
        retry(Duration.ofMillis(number("retry_in_ms")), reason);
    }

    /** Has it handed out again after that. */
    public void retry(Duration after, String reason) {
        settle("retry", after, reason);
    }

    /** Makes it a dead letter. */
    public void fail(String reason) {
        settle("fail", null, reason);
    }

    /** Has it handed out again at once, as if this had not happened. */
    public void putBack() {
        settle("return", null, null);
    }

    /** Has it handed out again, in the background. */
    void letGo() {
        if (hold.letGo()) {
            tenure.keeper().remove(hold);
            tenure.releaseLater(hold);
        }
    }

    private void settle(String act, Duration after, String reason) {
        if (!hold.letGo()) {
            check();
            throw new IllegalStateException("the item " + item() + " was settled before");
        }
        tenure.keeper().remove(hold);
        boolean isRetry = act.equals("retry");
        Map<String, Object> body = Api.body(
                "queue", queue.name(),
                "after_ms", after == null ? null : after.toMillis(),
                "reason", reason,
                "attempts_max", isRetry && queue.attemptsMax() > 0 ? (long) queue.attemptsMax() : null);
        try {
            tenure.api().repeat(Api.request("POST", "/v1/deliveries/" + hold.claim + "/" + act, body), queue.name());
        } catch (LostException e) {
            if (Api.isRepeated(e)) {
                String text = "nobody knows whether the item " + item() + " is settled: the first answer was lost, and then it was over";
                throw new UnavailableException(text, "it may be handed out again", queue.name(), e.requestId(), e);
            }
            throw e;
        }
    }

    /** Retries it, if it was not settled. It throws nothing: what is not answered comes again after its ttl. */
    @Override
    public void close() {
        if (isOver()) {
            return;
        }
        try {
            retry("not settled");
        } catch (TenureException e) {
            System.getLogger("dev.tenure").log(System.Logger.Level.DEBUG, "the item {0} comes again: {1}", item(), e.getMessage());
        }
    }
}
