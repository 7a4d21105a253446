package dev.tenure.shop;

import dev.tenure.Delivery;
import dev.tenure.Lease;
import dev.tenure.spring.FencingToken;
import dev.tenure.spring.Locked;
import dev.tenure.spring.QueueListener;
import dev.tenure.spring.WorkerId;
import java.time.Clock;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;
import org.springframework.boot.autoconfigure.condition.ConditionalOnProperty;
import org.springframework.stereotype.Component;

/** The methods that {@code docs/guides/spring.md} shows. */
@Component
@ConditionalOnProperty("shop.guide")
class Guide {
    private static final long EPOCH = 1_700_000_000_000L;

    /** What the methods write to. */
    static final class GuideLedger {
        final List<String> written = new CopyOnWriteArrayList<>();

        String charge(long id, long token) {
            written.add("charged " + id);
            return "receipt of " + id + (token > 0 ? "" : " without a token");
        }

        void refund(String order, long token) {
            written.add("refunded " + order + (token > 0 ? "" : " without a token"));
        }
    }

    private final GuideLedger ledger = new GuideLedger();
    private final Clock clock = Clock.systemUTC();
    private final WorkerId worker;
    private long last;
    private long counter;

    Guide(WorkerId worker) {
        this.worker = worker;
    }

    List<String> written() {
        return ledger.written;
    }

    @Locked(value = "billing/#{#id}", waitFor = "5s")
    public String charge(long id, Lease lease, @FencingToken long token) {
        String receipt = ledger.charge(id, token);
        lease.check();
        return receipt;
    }

    @QueueListener(value = "refunds", concurrency = "4", attemptsMax = "5")
    public void refund(String order, Delivery delivery, @FencingToken long token) {
        ledger.refund(order, token);
    }

    public synchronized long next() {
        Lease lease = worker.lease(); // LostException while there is none
        long now = clock.millis();
        counter = now == last ? counter + 1 : 0;
        last = now;
        lease.check();
        return ((now - EPOCH) << 10 | lease.slot()) << 12 | counter;
    }
}
