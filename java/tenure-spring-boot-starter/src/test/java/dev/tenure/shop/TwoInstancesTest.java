package dev.tenure.shop;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.tenure.Lease;
import dev.tenure.LostException;
import dev.tenure.Tenure;
import dev.tenure.TenureQueue;
import dev.tenure.WaitTimeoutException;
import dev.tenure.examples.RedisStyleLock;
import dev.tenure.spring.WorkerId;
import io.micrometer.core.instrument.MeterRegistry;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.locks.Lock;
import java.util.stream.Collectors;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.LockProvider;
import net.javacrumbs.shedlock.core.SimpleLock;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.springframework.beans.factory.BeanCreationException;
import org.springframework.boot.actuate.health.HealthEndpoint;
import org.springframework.boot.actuate.health.Status;
import org.springframework.context.ConfigurableApplicationContext;
import org.springframework.integration.support.locks.ExpirableLockRegistry;
import org.springframework.integration.support.locks.LockRegistry;
import org.springframework.integration.support.locks.RenewableLockRegistry;
import redis.clients.jedis.Jedis;

/** Two instances of an application on one store, in one JVM: what they promise each other. */
final class TwoInstancesTest {
    private static Site site;
    private static ConfigurableApplicationContext one;
    private static ConfigurableApplicationContext other;

    @BeforeAll
    static void start() throws Exception {
        site = new Site();
        one = site.start("one");
        other = site.start("other");
    }

    @AfterAll
    static void end() throws Exception {
        other.close();
        one.close();
        site.close();
    }

    private static <T> T of(ConfigurableApplicationContext instance, Class<T> type) {
        return instance.getBean(type);
    }

    /** Has the store forget who holds a lock, as an operator may or a server that has lost its disk. */
    private static void forget(String name) {
        try (Jedis jedis = site.redis.connect()) {
            assertEquals(1, jedis.del("tenure:" + name));
        }
    }

    /** What an operator does to a holder that hangs. */
    private static void breakHold(String name, long token) throws Exception {
        HttpRequest request = HttpRequest.newBuilder(URI.create(site.served.url + "/v1/resource/break"))
                .header("Content-Type", "application/json")
                .POST(HttpRequest.BodyPublishers.ofString("{\"name\": \"" + name + "\", \"token\": " + token + ", \"now\": true}"))
                .build();
        assertEquals(200, HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString()).statusCode());
    }

    /** On a thread of its own. */
    private static <T> CompletableFuture<T> elsewhere(Callable<T> work) {
        CompletableFuture<T> future = new CompletableFuture<>();
        Thread thread = new Thread(() -> {
            try {
                future.complete(work.call());
            } catch (Throwable e) {
                future.completeExceptionally(e);
            }
        });
        thread.setDaemon(true);
        thread.start();
        return future;
    }

    @Test
    void callsWithOneKeyExcludeEachOtherAndWriteWithGrowingTokens() throws Exception {
        List<CompletableFuture<List<Long>>> calls = new ArrayList<>();
        for (int i = 0; i < 8; i++) {
            Billing billing = of(i % 2 == 0 ? one : other, Billing.class);
            calls.add(elsewhere(() -> {
                List<Long> tokens = new ArrayList<>();
                for (int call = 0; call < 10; call++) {
                    tokens.add(billing.charge(1, null, 0));
                }
                return tokens;
            }));
        }
        Set<Long> tokens = new java.util.TreeSet<>();
        for (CompletableFuture<List<Long>> call : calls) {
            tokens.addAll(call.get(60, TimeUnit.SECONDS));
        }
        assertEquals(1, Billing.MOST.get());
        assertEquals(80, tokens.size());
        // Each was accepted by the table, in the order of its token.
        List<Long> written = site.jdbc.queryForList("select token from writes where account = 'account' order by seq", Long.class);
        assertEquals(List.copyOf(tokens), written);
        assertThrows(Ledger.StaleTokenException.class, () -> of(one, Ledger.class).write("account", written.get(0)));
    }

    @Test
    void otherKeysDoNotWaitAndBusyOnesAreRefused() throws Exception {
        of(one, Billing.class).work(2, () -> {
            of(other, Billing.class).work(3, () -> {});
            CompletableFuture<?> busy = elsewhere(() -> {
                of(other, Billing.class).work(2, () -> {});
                return null;
            });
            assertInstanceOf(WaitTimeoutException.class, assertThrows(Exception.class, () -> busy.get(60, TimeUnit.SECONDS)).getCause());
            CompletableFuture<?> waits = elsewhere(() -> {
                of(other, Billing.class).workSoon(2, () -> {});
                return null;
            });
            assertInstanceOf(WaitTimeoutException.class, assertThrows(Exception.class, () -> waits.get(60, TimeUnit.SECONDS)).getCause());
        });
        of(other, Billing.class).work(2, () -> {});
    }

    @Test
    void aNameIsMadeOfArgumentsBeansAndPlaceholders() {
        Billing billing = of(one, Billing.class);
        assertEquals("orders/eu/north/8/shop-4711", billing.name(new Billing.Order(7, "north"), null));
        IllegalArgumentException empty =
                assertThrows(IllegalArgumentException.class, () -> billing.name(new Billing.Order(7, ""), null));
        assertTrue(empty.getMessage().contains("#order.shop"), empty.getMessage());
        assertThrows(IllegalArgumentException.class, () -> billing.name(new Billing.Order(7, null), null));
    }

    @Test
    void whatIsRefusedIsRefusedAtOnce() {
        Billing billing = of(one, Billing.class);
        billing.work(4, () -> assertThrows(IllegalStateException.class, () -> billing.work(4, () -> {})));
        billing.transactional(() -> assertThrows(IllegalStateException.class, () -> billing.work(5, () -> {})));
        assertThrows(IllegalStateException.class, billing::unfinished);
        billing.work(4, () -> {});
        billing.work(5, () -> {});
    }

    @Test
    void anInterruptEndsTheWaitOfACall() throws Exception {
        Billing billing = of(one, Billing.class);
        Thread.currentThread().interrupt();
        assertThrows(CancellationException.class, () -> billing.work(6, () -> {}));
        assertTrue(Thread.interrupted());
        Thread.currentThread().interrupt();
        assertThrows(InterruptedException.class, () -> billing.declares(() -> {}));
        assertFalse(Thread.interrupted());
    }

    @Test
    void aResultOfUnprotectedWorkIsNotReturned() throws Exception {
        Billing billing = of(one, Billing.class);
        // It does not look.
        assertThrows(LostException.class, () -> billing.survive(lease -> forget("billing/lost"), null));
        // It looks, and hears of it on its own thread.
        AtomicBoolean hasLooked = new AtomicBoolean();
        assertThrows(
                LostException.class,
                () -> billing.survive(
                        lease -> {
                            forget("billing/lost");
                            while (true) {
                                lease.check();
                                hasLooked.set(true);
                            }
                        },
                        null));
        assertTrue(hasLooked.get());
        // It fails for another reason, which is not hidden.
        IllegalStateException failed = assertThrows(
                IllegalStateException.class,
                () -> billing.survive(
                        lease -> {
                            forget("billing/lost");
                            throw new IllegalStateException("no money");
                        },
                        null));
        assertEquals("no money", failed.getMessage());
        assertInstanceOf(LostException.class, failed.getSuppressed()[0]);
        assertEquals("as if all was well", billing.survive(Lease::check, null));
    }

    @Test
    void aTransactionEndsBeforeItsLockAndIsRolledBackIfThatIsLost() throws Exception {
        Billing billing = of(one, Billing.class);
        String count = "select count(*) from writes where account = 'transaction'";
        billing.inTransaction(
                lease -> assertTrue(org.springframework.transaction.support.TransactionSynchronizationManager.isActualTransactionActive()), null);
        assertEquals(1, site.jdbc.queryForObject(count, Integer.class));
        assertThrows(
                LostException.class,
                () -> billing.inTransaction(
                        lease -> {
                            forget("billing/transaction");
                            try {
                                Site.until("the loss is noticed", lease::isLost);
                            } catch (InterruptedException e) {
                                throw new AssertionError(e);
                            }
                        },
                        null));
        assertEquals(1, site.jdbc.queryForObject(count, Integer.class));
    }

    @Test
    void anAsynchronousMethodTakesItsLockOnItsThread() throws Exception {
        String text = of(one, Billing.class).asynchronous(null).get(60, TimeUnit.SECONDS);
        assertTrue(text.endsWith(" billing/async") && !text.startsWith(Thread.currentThread().getName()), text);
    }

    @Test
    void aLockRegistryExcludesAndIsReEntrant() throws Exception {
        Lock lock = of(one, LockRegistry.class).obtain("a");
        Lock same = of(one, LockRegistry.class).obtain("a");
        Lock others = of(other, LockRegistry.class).obtain("a");
        lock.lock();
        same.lockInterruptibly();
        assertTrue(same.tryLock());
        ((RenewableLockRegistry) of(one, LockRegistry.class)).renewLock("a");
        assertFalse(elsewhere(() -> others.tryLock()).get(60, TimeUnit.SECONDS));
        assertFalse(elsewhere(() -> lock.tryLock(20, TimeUnit.MILLISECONDS)).get(60, TimeUnit.SECONDS));
        lock.unlock();
        lock.unlock();
        assertFalse(elsewhere(() -> others.tryLock(20, TimeUnit.MILLISECONDS)).get(60, TimeUnit.SECONDS));
        lock.unlock();
        assertThrows(IllegalMonitorStateException.class, lock::unlock);
        assertTrue(others.tryLock(20, TimeUnit.SECONDS));
        others.unlock();
        RenewableLockRegistry registry = (RenewableLockRegistry) of(other, LockRegistry.class);
        assertThrows(IllegalStateException.class, () -> registry.renewLock("a"));
        of(one, LockRegistry.class).executeLocked("a", () -> assertFalse(elsewhere(() -> others.tryLock()).join()));
        assertThrows(IllegalArgumentException.class, () -> registry.obtain(7));
    }

    @Test
    void aLockRegistryTellsOfALossAndForgetsWhatIsNotUsed() throws Exception {
        ExpirableLockRegistry registry = (ExpirableLockRegistry) of(one, LockRegistry.class);
        Lock lost = registry.obtain("lost");
        lost.lock();
        registry.expireUnusedOlderThan(0);
        assertEquals(lost, registry.obtain("lost"));
        forget("integration/lost");
        assertThrows(LostException.class, lost::unlock);
        Thread.sleep(5);
        registry.expireUnusedOlderThan(1);
        assertNotEquals(lost, registry.obtain("lost"));
        assertTrue(lost.tryLock());
        lost.unlock();
    }

    private static Optional<SimpleLock> job(ConfigurableApplicationContext instance, String name, long most, long least) {
        return of(instance, LockProvider.class)
                .lock(new LockConfiguration(Instant.now(), name, Duration.ofMillis(most), Duration.ofMillis(least)));
    }

    @Test
    void aJobKeepsItsLockForAtLeastAndAtMostItsTimes() throws Exception {
        SimpleLock running = job(one, "job", 20_000, 0).orElseThrow();
        assertTrue(job(other, "job", 20_000, 0).isEmpty());
        running.unlock();
        // At least: it ends at once, and nobody else runs it.
        long granted = System.nanoTime();
        job(other, "job", 20_000, 1500).orElseThrow().unlock();
        while (job(one, "job", 20_000, 0).map(TwoInstancesTest::unlocked).isEmpty()) {
            Thread.sleep(20);
        }
        assertTrue(System.nanoTime() - granted >= 1_490_000_000, "the store has kept it");
        // At most: it does not end, and others run it.
        SimpleLock hangs = job(one, "job", 500, 0).orElseThrow();
        Site.until("it is given up", () -> job(other, "job", 20_000, 0).map(TwoInstancesTest::unlocked).isPresent());
        hangs.unlock();
        // Extended: not before the later time.
        granted = System.nanoTime();
        SimpleLock extended = job(one, "job", 2000, 0).orElseThrow().extend(Duration.ofMillis(4000), Duration.ZERO).orElseThrow();
        Site.until("it is given up", () -> job(other, "job", 20_000, 0).map(TwoInstancesTest::unlocked).isPresent());
        assertTrue(System.nanoTime() - granted >= 3_900_000_000L, "the extension counts");
        assertTrue(extended.extend(Duration.ofSeconds(1), Duration.ZERO).isEmpty());
    }

    private static boolean unlocked(SimpleLock lock) {
        lock.unlock();
        return true;
    }

    @Test
    void itemsComeInTheOrderOfTheirGroupAndAgainIfTheyFail() throws Exception {
        TenureQueue queue = of(one, Tenure.class).queue("refunds");
        for (int i = 0; i < 12; i++) {
            queue.push(TenureQueue.Push.of("g" + i % 2 + " order " + i + (i == 3 ? " fails once" : "")).group("g" + i % 2));
        }
        Site.until("all are done", () -> Refunds.DONE.stream().filter(done -> done.startsWith("g")).count() == 12);
        for (String group : List.of("g0", "g1")) {
            List<String> done = Refunds.DONE.stream().filter(text -> text.startsWith(group)).map(text -> text.replaceAll(" / (one|other)$", "")).toList();
            List<String> wanted = java.util.stream.IntStream.range(0, 12)
                    .filter(i -> group.equals("g" + i % 2))
                    .mapToObj(i -> group + " order " + i + (i == 3 ? " fails once / 2" : " / 1"))
                    .toList();
            assertEquals(wanted, done);
        }
    }

    @Test
    void anInstanceThatEndsFinishesItsItemsAndReleasesWhatItHas() throws Exception {
        Tenure tenure = of(one, Tenure.class);
        ConfigurableApplicationContext third = site.start("third", "shop.queue=slow");
        int number = of(third, WorkerId.class).number();
        assertEquals(2, number);
        tenure.queue("slow").push("slow order");
        Site.until("it works", () -> of(third, Tenure.class).counts().held() == 2);
        third.close();
        assertTrue(Refunds.DONE.contains("slow order / 1 / third"), Refunds.DONE.toString());
        assertThrows(IllegalStateException.class, () -> of(third, WorkerId.class));
        // Both numbers that are free: its own was not left to its ttl.
        try (Lease first = tenure.slotPool("worker-ids", 4).tryAcquire().orElseThrow();
                Lease second = tenure.slotPool("worker-ids", 4).tryAcquire().orElseThrow()) {
            assertEquals(Set.of(2, 3), Set.of(first.slot(), second.slot()));
            // None is left for one that starts.
            BeanCreationException failed =
                    assertThrows(BeanCreationException.class, () -> site.start("fourth", "tenure.worker-id.wait-for=0s", "shop.queue=none"));
            assertInstanceOf(WaitTimeoutException.class, failed.getMostSpecificCause());
        }
    }

    @Test
    void aWorkerIdThatIsLostIsTakenAnew() throws Exception {
        String settings = "tenure.worker-id.pool=lost-ids";
        try (ConfigurableApplicationContext third = site.start("third", settings, "tenure.ttl=1s", "shop.queue=none");
                ConfigurableApplicationContext fourth = site.start("fourth", settings, "tenure.ttl=1s", "shop.queue=none")) {
            WorkerId worker = of(third, WorkerId.class);
            assertEquals(Set.of(0, 1), Set.of(worker.number(), of(fourth, WorkerId.class).number()));
            Lease before = worker.lease();
            breakHold("lost-ids", before.token());
            ShopBeans.Events events = of(third, ShopBeans.Events.class);
            Site.until("there is another", () -> events.seen.size() == 2);
            WorkerId.Lost lost = assertInstanceOf(WorkerId.Lost.class, events.seen.get(0));
            WorkerId.Acquired acquired = assertInstanceOf(WorkerId.Acquired.class, events.seen.get(1));
            assertEquals(before.token(), lost.token());
            assertTrue(acquired.token() > lost.token());
            assertEquals(acquired.number(), worker.number());
            assertNotEquals(of(fourth, WorkerId.class).number(), worker.number());
            assertThrows(LostException.class, before::check);
        }
    }

    @Test
    void healthAndMetersSayHowItIs() throws Exception {
        HealthEndpoint health = of(one, HealthEndpoint.class);
        assertEquals(Status.UP, health.healthForPath("tenure").getStatus());
        MeterRegistry meters = of(one, MeterRegistry.class);
        double before = meters.get("tenure.leases").gauge().value();
        Lease lease = of(one, Tenure.class).mutex("metered").acquire();
        assertEquals(before + 1, meters.get("tenure.leases").gauge().value());
        lease.close();
        assertEquals(0, meters.get("tenure.waiting").gauge().value());
        assertTrue(meters.get("tenure.leases.lost").functionCounter().count() >= 0);
        assertTrue(meters.get("tenure.renewals").functionCounter().count() >= 0);
        try (ConfigurableApplicationContext alone =
                site.start("alone", "tenure.url=http://127.0.0.1:9", "tenure.worker-id.pool=false", "shop.queue=none")) {
            assertEquals(Status.DOWN, of(alone, HealthEndpoint.class).healthForPath("tenure").getStatus());
        }
    }

    @Test
    void theLockOfOldIsReleasedByItsOwnerAlone() throws Exception {
        RedisStyleLock mine = of(one, RedisStyleLock.class);
        RedisStyleLock others = of(other, RedisStyleLock.class);
        assertTrue(mine.tryLock("old", 5, TimeUnit.SECONDS));
        assertTrue(mine.token("old") > 0);
        assertFalse(mine.tryLock("old", 5, TimeUnit.SECONDS));
        assertFalse(others.tryLock("old", 5, TimeUnit.SECONDS));
        assertFalse(others.unlock("old"));
        assertFalse(elsewhere(() -> mine.unlock("old")).get(60, TimeUnit.SECONDS));
        CountDownLatch waits = new CountDownLatch(1);
        CompletableFuture<Boolean> next = elsewhere(() -> {
            waits.countDown();
            boolean isTaken = others.tryLock("old", 20, 5, TimeUnit.SECONDS);
            return isTaken && others.unlock("old");
        });
        waits.await();
        assertTrue(mine.unlock("old"));
        assertTrue(next.get(60, TimeUnit.SECONDS));
        assertFalse(mine.unlock("old"));
    }

    @Test
    void settingsAreToldToEditors() throws Exception {
        try (var metadata = TwoInstancesTest.class.getResourceAsStream("/META-INF/spring-configuration-metadata.json")) {
            String text = new String(metadata.readAllBytes(), StandardCharsets.UTF_8);
            Set<String> missing = List.of("tenure.url", "tenure.token", "tenure.patience", "tenure.ttl", "tenure.label", "tenure.lock-registry.prefix",
                            "tenure.shedlock.prefix", "tenure.worker-id.pool", "tenure.worker-id.slots", "tenure.worker-id.lock-delay", "tenure.worker-id.wait-for")
                    .stream()
                    .filter(name -> !text.contains("\"name\": \"" + name + "\""))
                    .collect(Collectors.toSet());
            assertEquals(Set.of(), missing);
        }
    }
}
