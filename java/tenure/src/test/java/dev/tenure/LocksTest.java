package dev.tenure;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.locks.Lock;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** Every primitive, on both ways to the server, with two clients. */
final class LocksTest {
    private static final Duration SOON = Duration.ofSeconds(20);

    @ParameterizedTest
    @EnumSource
    void aMutexExcludesAnotherClientUntilItIsReleased(Served.Way way) throws Exception {
        try (Served served = new Served(way);
                Tenure one = served.connect();
                Tenure other = served.connect()) {
            long token;
            try (Lease lease = one.mutex("billing/4711 ä \"x\"").acquire(SOON)) {
                token = lease.token();
                lease.check();
                assertTrue(lease.expiresIn().toMillis() > 20_000, lease.toString());
                assertTrue(other.mutex(lease.name()).tryAcquire().isEmpty());
                WaitTimeoutException timeout = assertThrows(
                        WaitTimeoutException.class, () -> other.mutex(lease.name()).acquire(Duration.ofMillis(50)));
                assertEquals(Kind.TIMEOUT, timeout.kind());
                assertEquals(1, one.counts().held());
            }
            assertEquals(0, one.counts().held());
            Lease next = other.mutex("billing/4711 ä \"x\"").tryAcquire().orElseThrow();
            assertTrue(next.token() > token);
            assertTrue(next.release());
            assertFalse(next.release());
            assertThrows(IllegalStateException.class, next::check);
            next.close();
        }
    }

    @ParameterizedTest
    @EnumSource
    void whoWaitsIsGrantedWhenItIsReleased(Served.Way way) throws Exception {
        try (Served served = new Served(way);
                Tenure one = served.connect();
                Tenure other = served.connect()) {
            Lease first = one.mutex("a").acquire();
            CompletableFuture<Lease> second = CompletableFuture.supplyAsync(() -> acquired(other.mutex("a")));
            until(() -> other.counts().waiting() == 1);
            first.close();
            Lease lease = second.get(20, TimeUnit.SECONDS);
            assertTrue(lease.token() > first.token());
            lease.close();
        }
    }

    @ParameterizedTest
    @EnumSource
    void aLeaseIsRenewedForMuchLongerThanItsTtl(Served.Way way) throws Exception {
        try (Served served = new Served(way);
                Tenure one = served.connect();
                Tenure other = served.connect()) {
            // 100 at once, in few requests.
            List<Lease> leases = new java.util.ArrayList<>();
            for (int i = 0; i < 100; i++) {
                leases.add(one.mutex("many/" + i).ttl(Duration.ofSeconds(3)).acquire());
            }
            until(() -> one.counts().renewals() >= 400);
            leases.forEach(Lease::check);
            assertTrue(other.mutex("many/50").tryAcquire().isEmpty());
            leases.forEach(Lease::close);
            assertEquals(0, one.counts().lost());
        }
    }

    @ParameterizedTest
    @EnumSource
    void whatAnOperatorEndsIsTold(Served.Way way) throws Exception {
        try (Served served = new Served(way);
                Tenure one = served.connect()) {
            Lease lease = one.mutex("a").ttl(Duration.ofSeconds(3)).acquire();
            CompletableFuture<LostException> told = new CompletableFuture<>();
            lease.onLost(told::complete);
            Map<String, Object> body = Api.body("name", "a", "token", lease.token(), "now", true);
            one.api().repeat(Api.request("POST", "/v1/resource/break", body), "a");
            LostException loss = told.get(20, TimeUnit.SECONDS);
            assertEquals("a", loss.resource());
            assertTrue(lease.isLost());
            assertThrows(LostException.class, lease::check);
            assertThrows(LostException.class, lease::close);
            lease.close();
            CompletableFuture<LostException> late = new CompletableFuture<>();
            lease.onLost(late::complete);
            late.get(20, TimeUnit.SECONDS);
        }
    }

    @ParameterizedTest
    @EnumSource
    void unitsSidesAndSlotsAreCounted(Served.Way way) throws Exception {
        try (Served served = new Served(way);
                Tenure one = served.connect();
                Tenure other = served.connect()) {
            try (Lease three = one.semaphore("s", 4, 3).acquire()) {
                assertTrue(other.semaphore("s", 4, 2).tryAcquire().isEmpty());
                other.semaphore("s", 4).tryAcquire().orElseThrow().close();
                TenureException conflict = assertThrows(TenureException.class, () -> other.semaphore("s", 5).tryAcquire());
                assertEquals(Kind.CONFLICT, conflict.kind());
                assertThrows(IllegalStateException.class, three::slot);
            }
            try (Lease read = one.readWriteLock("rw").read().acquire();
                    Lease too = other.readWriteLock("rw").read().acquire()) {
                assertTrue(other.readWriteLock("rw").write().tryAcquire().isEmpty());
                assertTrue(read.token() > 0 && too.token() > 0);
            }
            one.readWriteLock("rw").write().tryAcquire().orElseThrow().close();
            try (Lease first = one.slotPool("ids", 2).acquire();
                    Lease second = other.slotPool("ids", 2).acquire()) {
                assertEquals(1, first.slot() + second.slot());
                assertTrue(one.slotPool("ids", 2).tryAcquire().isEmpty());
            }
        }
    }

    @ParameterizedTest
    @EnumSource
    void aLeaderIsKnownToAll(Served.Way way) throws Exception {
        try (Served served = new Served(way);
                Tenure one = served.connect();
                Tenure other = served.connect()) {
            assertTrue(one.election("e").leader().isEmpty());
            try (Term term = one.election("e").campaign()) {
                term.publish("10.0.0.7:8080".getBytes(StandardCharsets.UTF_8));
                Election.Leader leader = other.election("e").leader().orElseThrow();
                assertEquals(term.token(), leader.token());
                assertEquals("10.0.0.7:8080", new String(leader.value(), StandardCharsets.UTF_8));
                assertTrue(other.election("e").tryCampaign().isEmpty());
            }
            assertTrue(other.election("e").leader().isEmpty());
        }
    }

    @ParameterizedTest
    @EnumSource
    void oneLoadsForAll(Served.Way way) throws Exception {
        try (Served served = new Served(way);
                Tenure one = served.connect();
                Tenure other = served.connect()) {
            AtomicInteger loads = new AtomicInteger();
            CountDownLatch loading = new CountDownLatch(1);
            byte[] value = {0, (byte) 0xff, 7};
            CompletableFuture<SingleFlight.Fetched> first = CompletableFuture.supplyAsync(() -> fetched(one, () -> {
                loads.incrementAndGet();
                loading.countDown();
                until(() -> other.counts().waiting() == 1);
                return value;
            }));
            assertTrue(loading.await(20, TimeUnit.SECONDS));
            SingleFlight.Fetched second = fetched(other, () -> {
                loads.incrementAndGet();
                return new byte[0];
            });
            assertTrue(first.get(20, TimeUnit.SECONDS).isLoaded());
            assertFalse(second.isLoaded());
            assertArrayEquals(value, second.value());
            assertEquals(1, loads.get());
            assertTrue(one.singleFlight("k", Duration.ofMinutes(1)).refresh(() -> value).isLoaded());
            assertThrows(java.io.IOException.class, () -> one.singleFlight("k", Duration.ofMinutes(1)).refresh(() -> {
                throw new java.io.IOException("no");
            }));
            assertEquals(0, one.counts().held());
        }
    }

    private static SingleFlight.Fetched fetched(Tenure tenure, java.util.concurrent.Callable<byte[]> load) {
        try {
            return tenure.singleFlight("k", Duration.ofMinutes(1)).get(load);
        } catch (Exception e) {
            throw new IllegalStateException(e);
        }
    }

    @ParameterizedTest
    @EnumSource
    void aLockOfJavaBelongsToItsThread(Served.Way way) throws Exception {
        try (Served served = new Served(way);
                Tenure one = served.connect();
                Tenure other = served.connect()) {
            Lock lock = one.mutex("a").asLock();
            lock.lock();
            assertThrows(IllegalMonitorStateException.class, lock::lock);
            assertFalse(lock.tryLock());
            assertFalse(other.mutex("a").asLock().tryLock(50, TimeUnit.MILLISECONDS));
            AtomicReference<Throwable> refused = new AtomicReference<>();
            Thread thread = new Thread(() -> {
                try {
                    lock.unlock();
                } catch (Throwable e) {
                    refused.set(e);
                }
            });
            thread.start();
            thread.join();
            assertEquals(IllegalMonitorStateException.class, refused.get().getClass());
            lock.unlock();
            assertThrows(IllegalMonitorStateException.class, lock::unlock);
            // An interrupt does not keep it from being taken or released.
            Thread.currentThread().interrupt();
            lock.lock();
            lock.unlock();
            assertTrue(Thread.interrupted());
            Lock again = other.mutex("a").asLock();
            assertTrue(again.tryLock());
            again.unlock();
        }
    }

    @ParameterizedTest
    @EnumSource
    void anInterruptEndsAWaitAndWithdrawsIt(Served.Way way) throws Exception {
        try (Served served = new Served(way);
                Tenure one = served.connect();
                Tenure other = served.connect()) {
            Lease first = one.mutex("a").acquire();
            AtomicReference<Throwable> ended = new AtomicReference<>();
            Thread waiter = new Thread(() -> {
                try {
                    other.mutex("a").acquire().close();
                } catch (Throwable e) {
                    ended.set(e);
                }
            });
            waiter.start();
            until(() -> waiting(one) == 1);
            waiter.interrupt();
            waiter.join(20_000);
            assertEquals(InterruptedException.class, ended.get().getClass());
            until(() -> waiting(one) == 0);
            first.close();
        }
    }

    /** How many wait for "a", as the server says. */
    private static long waiting(Tenure tenure) {
        try {
            Map<?, ?> fields = tenure.api().repeat(Api.request("GET", "/v1/resource?name=a", null), "a").fields();
            Object waiters = fields.containsKey("waiting") ? fields.get("waiting") : fields.get("waiters");
            return waiters instanceof List<?> list ? list.size() : waiters instanceof Long count ? count : -1;
        } catch (Api.Unanswered e) {
            return -1;
        }
    }

    @ParameterizedTest
    @EnumSource
    void aClosedClientHoldsNothing(Served.Way way) throws Exception {
        try (Served served = new Served(way);
                Tenure other = served.connect()) {
            Tenure one = served.connect();
            Lease lease = one.mutex("a").acquire();
            one.close();
            assertThrows(LostException.class, lease::check);
            other.mutex("a").tryAcquire().orElseThrow().close();
            assertThrows(UnavailableException.class, () -> one.mutex("a").acquire());
            // What it was granted all the same is released.
            other.mutex("b").acquire(SOON).close();
        }
    }

    @ParameterizedTest
    @EnumSource
    void errorsSayTheirKindAndWhatToDo(Served.Way way) throws Exception {
        try (Served served = new Served(way);
                Tenure one = served.connect()) {
            TenureException invalid = assertThrows(TenureException.class, () -> one.mutex("").acquire());
            assertEquals(Kind.INVALID, invalid.kind());
            assertTrue(invalid.requestId().matches("[0-9a-f]{16}"), invalid.requestId());
            TenureException half = assertThrows(TenureException.class, () -> one.mutex("\ud800").acquire());
            assertEquals(Kind.INVALID, half.kind());
            TenureException short_ = assertThrows(TenureException.class, () -> one.mutex("a").ttl(Duration.ofMillis(1)).acquire());
            assertEquals(Kind.INVALID, short_.kind());
            assertTrue(short_.getMessage().contains("ttl"), short_.getMessage());
        }
        try (Tenure nobody = Tenure.builder("http://127.0.0.1:1").patience(Duration.ofMillis(100)).build()) {
            assertThrows(UnavailableException.class, () -> nobody.mutex("a").acquire());
            assertThrows(UnavailableException.class, () -> nobody.mutex("a").tryAcquire());
        }
        assertThrows(TenureException.class, () -> Tenure.connect("redis://127.0.0.1"));
        assertThrows(TenureException.class, () -> Tenure.connect("http://user:secret@127.0.0.1"));
    }

    @ParameterizedTest
    @EnumSource
    void itemsOfAGroupComeInTheirOrder(Served.Way way) throws Exception {
        try (Served served = new Served(way);
                Tenure one = served.connect();
                Tenure other = served.connect()) {
            TenureQueue queue = one.queue("q");
            assertTrue(queue.take(Duration.ZERO).isEmpty());
            queue.push(TenureQueue.Push.of("first").group("g").context("c"));
            assertFalse(queue.push(TenureQueue.Push.of("second").group("g").dedup("d")).isDuplicate());
            assertTrue(queue.push(TenureQueue.Push.of("second").group("g").dedup("d")).isDuplicate());
            try (Delivery first = other.queue("q").take(SOON).orElseThrow()) {
                assertEquals("first", first.text());
                assertEquals("c", first.context());
                assertEquals(1, first.attempt());
                assertTrue(queue.take(Duration.ZERO).isEmpty());
                first.retry(Duration.ZERO, "not yet");
                assertThrows(IllegalStateException.class, first::ack);
            }
            try (Delivery again = queue.take(SOON).orElseThrow()) {
                assertEquals(2, again.attempt());
                again.ack();
            }
            try (Delivery second = queue.take(SOON).orElseThrow()) {
                assertEquals("second", second.text());
                second.putBack();
            }
            Delivery second = queue.take(SOON).orElseThrow();
            second.fail("no good");
            assertTrue(queue.take(Duration.ZERO).isEmpty());
        }
    }

    @ParameterizedTest
    @EnumSource
    void aListenerWorksOnAllItemsAndEnds(Served.Way way) throws Exception {
        try (Served served = new Served(way);
                Tenure one = served.connect()) {
            TenureQueue queue = one.queue("q").ttl(Duration.ofSeconds(3));
            for (int i = 0; i < 20; i++) {
                queue.push(TenureQueue.Push.of("" + i).group("g" + i % 3));
            }
            AtomicInteger done = new AtomicInteger();
            AtomicInteger failed = new AtomicInteger();
            QueueListener listener = queue.listen(3, delivery -> {
                if (delivery.text().equals("7") && failed.getAndIncrement() == 0) {
                    throw new IllegalStateException("once more");
                }
                done.incrementAndGet();
            });
            until(() -> done.get() == 20);
            assertEquals(2, failed.get());
            listener.close();
            queue.push("after");
            assertEquals("after", queue.take(SOON).orElseThrow().text());
            assertEquals(20, done.get());
        }
    }

    @ParameterizedTest
    @EnumSource
    void aBlockThatHasFoundTheLossThrowsIt(Served.Way way) throws Exception {
        try (Served served = new Served(way);
                Tenure one = served.connect()) {
            LostException thrown = assertThrows(LostException.class, () -> {
                try (Lease lease = one.mutex("a").ttl(Duration.ofMillis(300)).acquire()) {
                    served.kill();
                    until(lease::isLost);
                    lease.check();
                }
            });
            assertEquals("a", thrown.resource());
        }
    }

    @ParameterizedTest
    @EnumSource
    void whatTheStoreHasEndedUnnoticedIsToldAtTheEndOfTheBlock(Served.Way way) throws Exception {
        try (Served served = new Served(way);
                Tenure one = served.connect()) {
            Lease lease = one.mutex("a").acquire();
            one.api().repeat(Api.request("POST", "/v1/resource/break", Api.body("name", "a", "token", lease.token(), "now", true)), "a");
            lease.check();
            assertThrows(LostException.class, lease::close);
            lease.close();
        }
    }

    @ParameterizedTest
    @EnumSource
    void aServerIsReadyUntilItIsGone(Served.Way way) throws Exception {
        try (Served served = new Served(way);
                Tenure one = served.connect()) {
            one.checkReady();
            served.kill();
            assertThrows(UnavailableException.class, one::checkReady);
        }
    }

    private static Lease acquired(TenureLock lock) {
        try {
            return lock.acquire();
        } catch (InterruptedException e) {
            throw new IllegalStateException(e);
        }
    }

    /** Waits for a condition, for as long as a busy machine may take. */
    static void until(java.util.function.BooleanSupplier condition) {
        long until = System.nanoTime() + 30_000_000_000L;
        while (!condition.getAsBoolean()) {
            if (System.nanoTime() > until) {
                throw new AssertionError("it does not come true");
            }
            try {
                Thread.sleep(2);
            } catch (InterruptedException e) {
                throw new IllegalStateException(e);
            }
        }
    }
}
