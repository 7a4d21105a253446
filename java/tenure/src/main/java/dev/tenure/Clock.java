package dev.tenure;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.OptionalLong;
import java.util.function.LongSupplier;
import java.util.function.Supplier;

/**
 * Nanoseconds that go on while the machine sleeps.
 *
 * <p>{@link System#nanoTime()} stands still while a laptop or a virtual machine is suspended, and a lease does not. The clock of the day goes
 * on, but may be set. So where the two disagree, {@code /proc/uptime} is asked, which counts sleep and cannot be set; where that is not
 * there, a clock of the day that ran ahead is believed: a lease that ends too early is no harm.
 *
 * <p>What it does not notice: a clock of the day that is set back, during a sleep, by just as long as that lasted.
 */
final class Clock {
    static final Clock SYSTEM = new Clock(System::nanoTime, System::currentTimeMillis, Clock::uptime);

    /** Clocks are slewed by less than that between two looks. */
    private static final long DRIFT_MAX = 20_000_000;
    /** {@code /proc/uptime} has hundredths of a second; two readings may be off by two of them. */
    private static final long GRAIN = 50_000_000;
    private static final Path UPTIME = Path.of("/proc/uptime");

    private final LongSupplier nanos;
    private final LongSupplier dayMillis;
    private final Supplier<OptionalLong> uptime;
    private final long base;
    private final long uptimeAhead;
    private final boolean hasUptime;
    private volatile long slept;
    private volatile long dayAhead;

    /** A clock of these: nanoseconds that stand still in sleep, the time of day, and nanoseconds since the machine was started, if known. */
    Clock(LongSupplier nanos, LongSupplier dayMillis, Supplier<OptionalLong> uptime) {
        this.nanos = nanos;
        this.dayMillis = dayMillis;
        this.uptime = uptime;
        base = nanos.getAsLong();
        dayAhead = day() - mono();
        OptionalLong ahead = uptimeAhead();
        hasUptime = ahead.isPresent();
        uptimeAhead = ahead.orElse(0);
    }

    /** The time, from some moment on. */
    long now() {
        if (Math.abs(day() - mono() - dayAhead) > DRIFT_MAX) {
            look();
        }
        return mono() + slept;
    }

    private long mono() {
        return nanos.getAsLong() - base;
    }

    private long day() {
        return dayMillis.getAsLong() * 1_000_000;
    }

    private synchronized void look() {
        long day = day() - mono();
        long gained = day - dayAhead;
        dayAhead = day;
        OptionalLong ahead = hasUptime ? uptimeAhead() : OptionalLong.empty();
        long now = ahead.isPresent() ? ahead.getAsLong() - uptimeAhead : slept + Math.max(0, gained);
        if (now > slept + GRAIN || ahead.isEmpty()) {
            slept = Math.max(slept, now + GRAIN / 2);
        }
    }

    /** By how much uptime is ahead of {@link #mono()}. */
    private OptionalLong uptimeAhead() {
        // A pause between two readings would look like sleep.
        for (int attempt = 0; attempt < 10; attempt++) {
            long before = mono();
            OptionalLong now = uptime.get();
            if (now.isEmpty()) {
                return now;
            }
            if (mono() - before < 5_000_000) {
                return OptionalLong.of(now.getAsLong() - before);
            }
        }
        return OptionalLong.empty();
    }

    private static OptionalLong uptime() {
        try {
            String text = Files.readString(UPTIME).split(" ", 2)[0];
            return OptionalLong.of(Math.round(Double.parseDouble(text) * 100) * 10_000_000);
        } catch (IOException | RuntimeException e) {
            return OptionalLong.empty();
        }
    }
}
