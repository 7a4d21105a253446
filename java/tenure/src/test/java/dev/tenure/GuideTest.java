package dev.tenure;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;

/** Each line of Java on the page {@code docs/guides/java.md} stands here, and does what the page says. */
final class GuideTest {
    private final CompletableFuture<String> refunded = new CompletableFuture<>();
    private long charged;

    private void charge(long token) {
        charged = token;
    }

    private static void stop(String why) {
        throw new AssertionError(why);
    }

    private static byte[] load() {
        return new byte[] {1};
    }

    private void refund(String order, long token) {
        assertTrue(token > 0);
        refunded.complete(order);
    }

    /** A client of the server of this test, in the place of the page's address. */
    private static final class Connecting {
        private static Served served;

        static Tenure connect(String page) {
            assertTrue(page.startsWith("unix:"));
            return served.connect();
        }
    }

    @Test
    void theLinesOfThePageWork() throws Exception {
        try (Served served = new Served(Served.Way.UNIX)) {
            Connecting.served = served;
            Tenure tenure = Connecting.connect("unix:/run/tenure.sock"); // or http://host:7070, https://host:7070
            try (Lease lease = tenure.mutex("billing/4711").acquire(Duration.ofSeconds(5))) { // WaitTimeoutException after 5 s
                charge(lease.token());
                lease.check(); // LostException once it is lost
                assertEquals(lease.token(), charged);
                lease.onLost(loss -> stop(loss.getMessage()));
            }
            int worker = tenure.slotPool("worker-ids", 1024).acquire().slot();
            assertEquals(0, worker);
            SingleFlight.Fetched rates = tenure.singleFlight("rates", Duration.ofMinutes(10)).get(() -> load());
            assertTrue(rates.isLoaded());
            TenureQueue refunds = tenure.queue("refunds").attemptsMax(5);
            refunds.push(TenureQueue.Push.of("order 4711").group("merchant 17"));
            Thread joins = Thread.currentThread();
            Threads.daemon("interrupts", () -> {
                refunded.join();
                joins.interrupt();
            }).start();
            try (QueueListener listener = refunds.listen(4, delivery -> refund(delivery.text(), delivery.token()))) {
                listener.join();
            } catch (InterruptedException e) {
                // The page waits for ever.
            }
            assertEquals("order 4711", refunded.get(20, TimeUnit.SECONDS));
            tenure.close();
        }
    }

    @Test
    void everyLineOfThePageStandsHere() throws IOException {
        Path module = Path.of(System.getProperty("basedir", "."));
        String page = Files.readString(module.resolve("../../docs/guides/java.md"));
        String here = Files.readString(module.resolve("src/test/java/dev/tenure/GuideTest.java"));
        List<String> missing = new ArrayList<>();
        // The blocks after that are about other clients.
        String[] parts = page.substring(0, page.indexOf("## The same Redis key")).split("```");
        int count = 0;
        for (int i = 1; i < parts.length; i += 2) {
            if (parts[i].startsWith("java\n")) {
                for (String line : parts[i].substring(5).split("\n")) {
                    count++;
                    String wanted = line.strip().replace("Tenure.connect(", "Connecting.connect(");
                    if (here.lines().map(String::strip).noneMatch(wanted::equals)) {
                        missing.add(line);
                    }
                }
            }
        }
        assertTrue(count > 10, "the page has lines of Java");
        assertEquals(List.of(), missing.stream().filter(line -> !line.isBlank()).toList());
    }
}
