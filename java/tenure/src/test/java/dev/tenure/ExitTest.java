package dev.tenure;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.File;
import java.time.Duration;
import java.util.concurrent.CountDownLatch;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** What becomes of leases that nobody has closed at the end of a program. */
final class ExitTest {
    /** Longer than a JVM takes to end. */
    private static final Duration TTL = Duration.ofSeconds(8);

    /** A program that takes a lock and ends. */
    static final class Program {
        public static void main(String[] args) throws Exception {
            Tenure tenure = Tenure.connect(args[0]);
            switch (args[1]) {
                case "returns" -> tenure.mutex("a").ttl(TTL).acquire();
                case "exits" -> {
                    tenure.mutex("a").ttl(TTL).acquire();
                    System.exit(0);
                }
                default -> {
                    CountDownLatch held = new CountDownLatch(1);
                    Threads.daemon("works", () -> {
                        try {
                            Lease lease = tenure.mutex("a").ttl(TTL).acquire();
                            held.countDown();
                            // It writes until the JVM halts.
                            while (!lease.isLost()) {
                                Thread.sleep(1);
                            }
                        } catch (InterruptedException e) {
                            throw new IllegalStateException(e);
                        }
                    }).start();
                    held.await();
                    System.exit(0);
                }
            }
        }
    }

    @ParameterizedTest
    @CsvSource({"returns, true", "exits, true", "works, false"})
    void onlyWhatNobodyCanStillUseIsReleased(String how, boolean isReleased) throws Exception {
        try (Served served = new Served(Served.Way.UNIX);
                Tenure other = served.connect()) {
            String classes = place(Tenure.class) + File.pathSeparator + place(ExitTest.class);
            Process program = new ProcessBuilder("java", "-cp", classes, Program.class.getName(), served.url, how).inheritIO().start();
            assertEquals(0, program.waitFor());
            assertEquals(isReleased, other.mutex("a").tryAcquire().isPresent());
            if (!isReleased) {
                // Its ttl ends it.
                assertTrue(other.mutex("a").acquire(Duration.ofSeconds(60)).token() > 0);
            }
        }
    }

    private static String place(Class<?> type) throws Exception {
        return new File(type.getProtectionDomain().getCodeSource().getLocation().toURI()).getPath();
    }
}
