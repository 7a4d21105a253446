package dev.tenure.shop;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.tenure.Tenure;
import dev.tenure.spring.TenureProperties;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.Test;
import org.springframework.boot.context.properties.bind.Binder;
import org.springframework.context.ConfigurableApplicationContext;

/** What {@code docs/guides/spring.md} and the README show works, and the plain lock of {@code docs/guides/java.md} is the one that is tested. */
final class GuideTest {
    private static final Path MODULE = Path.of(System.getProperty("basedir", "."));

    @Test
    void theMethodsOfThePageWork() throws Exception {
        try (Site site = new Site();
                ConfigurableApplicationContext instance = site.start("guide", "shop.guide=true", "shop.queue=none")) {
            Guide guide = instance.getBean(Guide.class);
            assertEquals("receipt of 4711", guide.charge(4711, null, 0));
            assertTrue(guide.next() < guide.next());
            instance.getBean(Tenure.class).queue("refunds").push("order 4711");
            Site.until("it is refunded", () -> guide.written().contains("refunded order 4711"));
        }
    }

    @Test
    void theLinesOfThePagesStandInTheTests() throws IOException {
        assertEquals(List.of(), missing("docs/guides/spring.md", "", "Guide.java", 12));
        assertEquals(List.of(), missing("docs/guides/java.md", "A whole lock in Spring:", "PlainRedisLock.java", 5));
        assertTrue(Files.readString(MODULE.resolve("../../README.md")).contains("`@Locked(value = \"billing/#{#id}\", waitFor = \"5s\")`"));
    }

    @Test
    void theSettingsAreByDefaultWhatThePageSays() {
        TenureProperties settings = new Binder(List.of()).bindOrCreate("tenure", TenureProperties.class);
        // page: docs/guides/spring.md "`http://127.0.0.1:7070`"
        assertEquals("http://127.0.0.1:7070", settings.url());
        // page: docs/guides/spring.md "| 15 s | for how long nobody may answer"
        assertEquals(Duration.ofSeconds(15), settings.patience());
        // page: docs/guides/spring.md "| 30 s | how long what is taken is held"
        assertEquals(Duration.ofSeconds(30), settings.ttl());
        // page: docs/guides/spring.md "| none, 1024 |"
        assertEquals(1024, settings.workerId().slots());
        // page: docs/guides/spring.md "| 0, 30 s |"
        assertEquals(Duration.ZERO, settings.workerId().lockDelay());
        assertEquals(Duration.ofSeconds(30), settings.workerId().waitFor());
    }

    /** Lines of Java from there on that do not stand in a file of these tests. */
    private static List<String> missing(String page, String from, String file, int least) throws IOException {
        String text = Files.readString(MODULE.resolve("../..").resolve(page));
        List<String> known = Files.readString(MODULE.resolve("src/test/java/dev/tenure/shop").resolve(file)).lines().map(String::strip).toList();
        String[] parts = text.substring(text.indexOf(from)).split("```");
        List<String> lines = new ArrayList<>();
        for (int i = 1; i < parts.length; i += 2) {
            if (parts[i].startsWith("java\n")) {
                parts[i].substring("java\n".length()).lines().filter(line -> !line.isBlank()).forEach(lines::add);
            }
        }
        assertTrue(lines.size() > least, page + " shows Java");
        return lines.stream().filter(line -> !known.contains(line.strip())).toList();
    }
}
