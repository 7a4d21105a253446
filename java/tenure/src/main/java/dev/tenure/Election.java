package dev.tenure;

import java.time.Duration;
import java.util.Map;
import java.util.Optional;

/** One leader at a time, and everybody can ask who it is. */
public final class Election {
    private final Tenure tenure;
    private final TenureLock lock;

    Election(Tenure tenure, TenureLock lock) {
        this.tenure = tenure;
        this.lock = lock;
    }

    /**
     * Who leads.
     *
     * @param label what the server knows of it: the name of its token
     * @param token the token of its term
     * @param value what it has published; null if nothing
     */
    public record Leader(String label, long token, byte[] value) {}

    /** How long nobody leads after a leader has died: 30 s if nothing else is said. */
    public Election ttl(Duration ttl) {
        return new Election(tenure, lock.ttl(ttl));
    }

    /**
     * Waits until this candidate leads, in the order in which candidates came.
     *
     * @throws InterruptedException if the thread is interrupted; the candidacy is withdrawn
     * @throws UnavailableException if nobody answers for the patience of the client (15 s)
     */
    public Term campaign() throws InterruptedException {
        return new Term(tenure, lock.claim(null));
    }

    /** Leads if nobody leads or campaigns. One round trip. */
    public Optional<Term> tryCampaign() {
        return lock.tryClaim().map(hold -> new Term(tenure, hold));
    }

    /**
     * Who leads; empty if nobody does. One round trip. It needs the verb {@code read}.
     *
     * @throws UnavailableException if nobody answers
     */
    public Optional<Leader> leader() {
        return tenure.leader(lock.name());
    }

    static Leader leader(Map<?, ?> fields) throws Api.Unanswered {
        String label = "";
        if (fields.get("leader") instanceof Map<?, ?> holder) {
            Object shown = holder.get("text") instanceof String text && !text.isEmpty() ? text : holder.get("program");
            label = shown instanceof String text ? text : "";
        }
        return new Leader(label, Api.whole(fields, "token"), Api.bytes(fields, "value"));
    }
}
