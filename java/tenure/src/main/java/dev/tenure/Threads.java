package dev.tenure;

import java.lang.reflect.Method;
import java.util.concurrent.Executor;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.AtomicLong;

/** Threads that keep no program alive: virtual ones where the JVM has them (from Java 21 on). */
final class Threads {
    private static final Method OF_VIRTUAL = method(Thread.class, "ofVirtual");
    private static final AtomicLong COUNT = new AtomicLong();
    private static final Executor POOL =
            hasVirtual() ? task -> start("tenure-io", task) : Executors.newCachedThreadPool(task -> daemon("tenure-io", task));

    private Threads() {}

    /** For work that may wait: calls, callbacks. */
    static Executor pool() {
        return POOL;
    }

    /** Starts a thread. */
    static Thread start(String name, Runnable task) {
        Thread thread = virtual(name + "-" + COUNT.incrementAndGet(), task);
        Thread made = thread == null ? daemon(name, task) : thread;
        made.start();
        return made;
    }

    /** A thread of the system's, whatever the JVM has. */
    static Thread daemon(String name, Runnable task) {
        Thread thread = new Thread(task, name);
        thread.setDaemon(true);
        return thread;
    }

    static boolean hasVirtual() {
        return virtual("tenure-probe", () -> {}) != null;
    }

    private static Thread virtual(String name, Runnable task) {
        if (OF_VIRTUAL == null) {
            return null;
        }
        try {
            Object builder = OF_VIRTUAL.invoke(null);
            Class<?> type = Class.forName("java.lang.Thread$Builder");
            builder = type.getMethod("name", String.class).invoke(builder, name);
            return (Thread) type.getMethod("unstarted", Runnable.class).invoke(builder, task);
        } catch (ReflectiveOperationException e) {
            // Java 19 and 20 have them only where previews are enabled.
            return null;
        }
    }

    private static Method method(Class<?> type, String name) {
        try {
            return type.getMethod(name);
        } catch (NoSuchMethodException e) {
            return null;
        }
    }
}
