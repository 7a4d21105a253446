package dev.tenure.shop;

import dev.tenure.Lease;
import dev.tenure.spring.FencingToken;
import dev.tenure.spring.Locked;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Consumer;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.scheduling.annotation.Async;
import org.springframework.stereotype.Component;
import org.springframework.transaction.annotation.Transactional;

/** Work under locks. */
@Component
class Billing {
    /** How many work now, and how many did so at most, in all instances of this JVM. */
    static final AtomicInteger INSIDE = new AtomicInteger();
    static final AtomicInteger MOST = new AtomicInteger();

    record Order(long id, String shop) {}

    private final Ledger ledger;
    private final JdbcTemplate jdbc;
    private String region = "eu";

    Billing(Ledger ledger, JdbcTemplate jdbc) {
        this.ledger = ledger;
        this.jdbc = jdbc;
    }

    /** Of the bean, for a name. */
    public String getRegion() {
        return region;
    }

    @Locked(value = "billing/#{#id}", waitFor = "20s")
    public long charge(long id, Lease lease, @FencingToken long token) {
        MOST.accumulateAndGet(INSIDE.incrementAndGet(), Math::max);
        try {
            lease.check();
            ledger.write("account", token);
            Thread.yield();
            return token;
        } finally {
            INSIDE.decrementAndGet();
        }
    }

    @Locked(value = "billing/#{#id}", waitFor = "0s")
    public void work(long id, Runnable work) {
        work.run();
    }

    @Locked(value = "billing/#{#id}", waitFor = "100ms")
    public void workSoon(long id, Runnable work) {
        work.run();
    }

    @Locked("${shop.prefix:orders}/#{region}/#{#order.shop}/#{#order.id + 1}/#{@shopName}")
    public String name(Order order, Lease lease) {
        return lease.name();
    }

    @Locked(value = "billing/lost", waitFor = "20s", ttl = "1s")
    public String survive(Consumer<Lease> work, Lease lease) {
        work.accept(lease);
        return "as if all was well";
    }

    @Locked("billing/transaction")
    @Transactional
    public void inTransaction(Consumer<Lease> work, Lease lease) {
        jdbc.update("insert into writes (account, token, instance) values ('transaction', ?, 'x')", lease.token());
        work.accept(lease);
    }

    @Transactional
    public void transactional(Runnable work) {
        work.run();
    }

    @Async
    @Locked("billing/async")
    public Future<String> asynchronous(Lease lease) {
        return CompletableFuture.completedFuture(Thread.currentThread().getName() + " " + lease.name());
    }

    @Locked("billing/future")
    public Future<String> unfinished() {
        return new CompletableFuture<>();
    }

    @Locked("billing/interrupt")
    public void declares(Runnable work) throws InterruptedException {
        work.run();
    }
}
