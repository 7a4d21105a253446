package dev.tenure.shop;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.tenure.Lease;
import dev.tenure.Tenure;
import java.io.File;
import java.io.IOException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;

/**
 * Two instances in two JVMs work without a rest while they are killed and stopped, and the store is killed and started again: for 20 s, and
 * with {@code -Dtenure.long=true} for two minutes. What each has done is judged by what it wrote down.
 */
final class DisturbedTest {
    private static final long AT_LEAST_MILLIS = 1600;

    private final Random random = new Random(Long.getLong("tenure.seed", System.nanoTime() % 100_000));
    private final Map<String, Process> instances = new HashMap<>();
    private Site site;

    @Test
    void nothingIsDoneTwice() throws Exception {
        int seconds = Boolean.getBoolean("tenure.long") ? 120 : 20;
        try (Site started = new Site()) {
            site = started;
            startInstance("one");
            startInstance("other");
            worksOn("at first", Set.of("one", "other"));
            long until = System.nanoTime() + TimeUnit.SECONDS.toNanos(seconds);
            for (int turn = 0; System.nanoTime() < until; turn++) {
                disturb(turn % 3);
            }
            worksOn("in the end", Set.of("one", "other"));
            for (Process instance : instances.values()) {
                instance.destroy();
                assertTrue(instance.waitFor(60, TimeUnit.SECONDS), "it ends when it is told to");
            }
            judge();
        } finally {
            instances.values().forEach(Process::destroyForcibly);
        }
    }

    private void startInstance(String name) throws IOException {
        List<String> line = new ArrayList<>(List.of(
                System.getProperty("java.home") + "/bin/java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx128m", "-cp",
                System.getProperty("surefire.test.class.path", System.getProperty("java.class.path")), "dev.tenure.shop.ShopApplication"));
        line.addAll(site.settings(name, "shop.load=true", "shop.queue=none", "shop.report=*/2 * * * * *", "tenure.ttl=2s", "tenure.patience=60s",
                "logging.level.dev.tenure=ERROR", "logging.level.net.javacrumbs=OFF", "logging.level.org.springframework.scheduling=OFF"));
        instances.put(name, new ProcessBuilder(line)
                .redirectOutput(ProcessBuilder.Redirect.appendTo(new File("/dev/null")))
                .redirectError(ProcessBuilder.Redirect.INHERIT)
                .start());
    }

    private void signal(String signal, String instance) throws Exception {
        assertEquals(0, new ProcessBuilder("kill", "-" + signal, "" + instances.get(instance).pid()).start().waitFor());
    }

    private void disturb(int what) throws Exception {
        String victim = random.nextBoolean() ? "one" : "other";
        switch (what) {
            case 0 -> {
                // For longer than its ttl: others get all that it holds.
                signal("STOP", victim);
                Thread.sleep(2500 + random.nextInt(2500));
                signal("CONT", victim);
            }
            case 1 -> {
                site.redis.kill();
                Thread.sleep(random.nextInt(4000));
                site.redis.start();
            }
            default -> {
                instances.get(victim).destroyForcibly().waitFor();
                Thread.sleep(random.nextInt(1000));
                startInstance(victim);
                worksOn("started again", Set.of(victim));
            }
        }
        Thread.sleep(500 + random.nextInt(2000));
    }

    private void worksOn(String when, Set<String> names) throws InterruptedException {
        for (String name : names) {
            int ids = count(name);
            long writes = site.jdbc.queryForObject("select count(*) from writes", Long.class);
            int reports = site.jdbc.queryForObject("select count(*) from reports", Integer.class);
            Site.until(name + " makes ids " + when, () -> count(name) > ids + 2);
            Site.until("locks are taken " + when, () -> site.jdbc.queryForObject("select count(*) from writes", Long.class) > writes + 2);
            Site.until("the job runs " + when, () -> site.jdbc.queryForObject("select count(*) from reports", Integer.class) > reports);
        }
    }

    private int count(String instance) {
        return site.jdbc.queryForObject("select count(*) from held where instance = ?", Integer.class, instance);
    }

    private void judge() throws Exception {
        // The table accepted no token after a larger one.
        List<Long> tokens = site.jdbc.queryForList("select token from writes where account = 'load' order by seq", Long.class);
        for (int i = 1; i < tokens.size(); i++) {
            assertTrue(tokens.get(i - 1) <= tokens.get(i), "a stale write of " + tokens.get(i) + " after " + tokens.get(i - 1));
        }
        assertEquals(
                List.of(),
                site.jdbc.queryForList("select token from writes where account = 'load' group by token having count(distinct instance) > 1"),
                "a token is one instance's");
        judgeJobs();
        judgeNumbers();
        assertEquals(List.of(), site.jdbc.queryForList("select text from duplicates", String.class));
        System.out.println("disturbed: " + tokens.size() + " writes, " + site.jdbc.queryForObject("select count(*) from ids", Long.class) + " ids, "
                + site.jdbc.queryForObject("select count(*) from reports", Long.class) + " runs of a job");
        // Both have released their numbers when they ended.
        try (Tenure tenure = site.served.connect();
                Lease one = tenure.slotPool("worker-ids", 4).tryAcquire().orElseThrow();
                Lease other = tenure.slotPool("worker-ids", 4).tryAcquire().orElseThrow();
                Lease third = tenure.slotPool("worker-ids", 4).tryAcquire().orElseThrow();
                Lease fourth = tenure.slotPool("worker-ids", 4).tryAcquire().orElseThrow()) {
            assertEquals(6, one.slot() + other.slot() + third.slot() + fourth.slot());
        }
    }

    private record Grant(long before, long after) {}

    /** A job was granted between two times. Two grants of it are as far apart as was said, whatever ended the first. */
    private void judgeJobs() {
        List<Grant> grants = site.jdbc.query(
                "select before, after from grants where job = 'report' order by after",
                (row, number) -> new Grant(row.getLong(1), row.getLong(2)));
        for (int i = 0; i < grants.size(); i++) {
            for (int k = i + 1; k < grants.size(); k++) {
                // Either may have been the first: an instance may be stopped between its grant and the second time.
                long most = Math.max(
                        grants.get(k).after() - grants.get(i).before(), grants.get(i).after() - grants.get(k).before());
                assertTrue(most >= AT_LEAST_MILLIS, "the job ran twice within " + most + " ms: " + grants.get(i) + ", " + grants.get(k));
            }
        }
    }

    private record Held(int worker, long token, long first, long last) {}

    /** A number was an instance's from when it was first seen with a token until it was last seen. These times do not overlap. */
    private void judgeNumbers() {
        List<Held> all = site.jdbc.query(
                "select worker, token, min(at), max(at) from held group by worker, token order by worker, token",
                (row, number) -> new Held(row.getInt(1), row.getLong(2), row.getLong(3), row.getLong(4)));
        for (int i = 1; i < all.size(); i++) {
            Held before = all.get(i - 1);
            Held after = all.get(i);
            if (before.worker() == after.worker()) {
                assertTrue(before.last() <= after.first(), "held twice: " + before + ", " + after);
            }
        }
    }
}
