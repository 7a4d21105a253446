package dev.tenure;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.OptionalLong;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Sleep counts, and a clock that is set does not. */
final class ClockTest {
    private static final long HOUR = 3_600_000_000_000L;

    private long nanos = 77;
    private long day = 1_700_000_000_000L;
    private long uptime = 5_000_000_000L;

    private Clock clock(boolean hasUptime) {
        return new Clock(() -> nanos, () -> day, () -> hasUptime ? OptionalLong.of(uptime) : OptionalLong.empty());
    }

    private void pass(long awake, long asleep, long set) {
        nanos += awake;
        uptime += awake + asleep;
        day += (awake + asleep + set) / 1_000_000;
    }

    @ParameterizedTest
    @ValueSource(booleans = {true, false})
    void sleepCounts(boolean hasUptime) {
        Clock clock = clock(hasUptime);
        long before = clock.now();
        pass(1_000_000_000, 0, 0);
        assertEquals(before + 1_000_000_000, clock.now());
        pass(0, HOUR, 0);
        assertTrue(clock.now() >= before + 1_000_000_000 + HOUR, "a lease that slept is over");
        assertTrue(clock.now() <= before + 2_000_000_000 + HOUR);
        long then = clock.now();
        pass(1_000_000_000, 0, 0);
        assertEquals(then + 1_000_000_000, clock.now());
    }

    @ParameterizedTest
    @ValueSource(longs = {HOUR, -HOUR})
    void aClockThatIsSetChangesNothing(long set) {
        Clock clock = clock(true);
        long before = clock.now();
        pass(1_000_000_000, 0, set);
        assertEquals(before + 1_000_000_000, clock.now());
        // A sleep afterwards is noticed all the same.
        pass(0, HOUR, 0);
        assertTrue(clock.now() >= before + 1_000_000_000 + HOUR);
    }

    @ParameterizedTest
    @ValueSource(longs = {HOUR, -HOUR})
    void whereUptimeIsNotKnownTimeNeverGoesBack(long set) {
        Clock clock = clock(false);
        long before = clock.now();
        pass(1_000_000_000, 0, set);
        assertTrue(clock.now() >= before + 1_000_000_000);
    }
}
