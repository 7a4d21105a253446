package anchors;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.UncheckedIOException;
import java.net.UnixDomainSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.Channels;
import java.nio.channels.FileChannel;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.time.Duration;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.redisson.api.RFencedLock;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;

/**
 * A client's process under {@code tenure-chaos --classic}, whose tasks take mutexes by another library's lock, as its own page shows it.
 * {@code client/classic/foreign.py} does the same in Python.
 */
final class Chaos {
    private static final long LOOK_EVERY_MS = 10;
    private static final int LOOKS_PER_WRITE = 3;

    private final String classic;
    private final String url;
    private final Duration ttl;
    private final FileChannel journal;
    private final String resource;
    private final int mutexes;
    /** What is added to this JVM's clock, which stands still while the machine sleeps: the supervisor's does not. */
    private final long ahead;
    private final AtomicLong numbers = new AtomicLong();
    private volatile boolean isCalm;
    private volatile boolean isOver;

    /** What was granted: its token, or null if it has none, and what lets it go. */
    private record Granted(Long token, AutoCloseable held) {}

    /** A lock by name, tried for so many milliseconds. Null: others have it. */
    private interface Locks {
        Granted take(String name, long waitMs) throws Exception;
    }

    private Chaos(String[] args) throws IOException {
        classic = args[0];
        url = args[1];
        ttl = Duration.ofMillis((long) (1000 * Double.parseDouble(args[2])));
        journal = FileChannel.open(Path.of(args[3]), StandardOpenOption.WRITE, StandardOpenOption.APPEND);
        resource = args[4];
        mutexes = Integer.parseInt(args[6]);
        ahead = Long.parseLong(args[7]);
    }

    public static void main(String[] args) throws Exception {
        Chaos chaos = new Chaos(args);
        Locks locks = chaos.connect();
        for (int task = 0; task < Integer.parseInt(args[5]); task++) {
            String name = "mutex-" + task;
            Thread thread = new Thread(() -> chaos.work(locks, name));
            thread.setDaemon(true);
            thread.start();
        }
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            chaos.isCalm |= line.trim().equals("calm");
        }
        chaos.isOver = true;
        // Whoever waits or holds has nothing to say any more.
        TimeUnit.SECONDS.sleep(5);
        Runtime.getRuntime().halt(0);
    }

    private Locks connect() throws InterruptedException {
        if (classic.equals("curator")) {
            CuratorFramework curator = Ways.curator(url, ttl);
            return (name, waitMs) -> {
                InterProcessMutex mutex = new InterProcessMutex(curator, "/lock/" + name);
                return mutex.acquire(waitMs, TimeUnit.MILLISECONDS) ? new Granted(null, mutex::release) : null;
            };
        }
        RedissonClient redisson = Ways.redisson(url, ttl);
        if (classic.equals("redisson-fenced")) {
            return (name, waitMs) -> {
                RFencedLock lock = redisson.getFencedLock("lock:" + name);
                Long token = lock.tryLockAndGetToken(waitMs, TimeUnit.MILLISECONDS);
                return token == null ? null : new Granted(token, lock::unlock);
            };
        }
        return (name, waitMs) -> {
            RLock lock = redisson.getLock("lock:" + name);
            return lock.tryLock(waitMs, TimeUnit.MILLISECONDS) ? new Granted(null, lock::unlock) : null;
        };
    }

    private long now() {
        return System.nanoTime() + ahead;
    }

    private void write(Object... parts) {
        StringBuilder line = new StringBuilder();
        for (Object part : parts) {
            line.append(line.isEmpty() ? "" : "\t").append(part);
        }
        try {
            // In one piece: other processes append to the same file.
            journal.write(ByteBuffer.wrap(line.append('\n').toString().getBytes(StandardCharsets.UTF_8)));
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    private void work(Locks locks, String task) {
        try (SocketChannel socket = SocketChannel.open(UnixDomainSocketAddress.of(resource))) {
            BufferedReader answers = new BufferedReader(new InputStreamReader(Channels.newInputStream(socket), StandardCharsets.UTF_8));
            while (!isOver) {
                try {
                    section(locks, task, socket, answers);
                } catch (Exception e) {
                    write("error", "classic", "unavailable", e.toString().replaceAll("\\s+", " "));
                    Thread.sleep(50);
                }
                Thread.sleep(ThreadLocalRandom.current().nextLong(60));
            }
        } catch (IOException | InterruptedException e) {
            e.printStackTrace();
        }
    }

    private long periodMs() {
        ThreadLocalRandom random = ThreadLocalRandom.current();
        int kind = random.nextInt(20);
        if (kind == 0 && !isCalm) {
            return random.nextLong(ttl.toMillis() * 3 / 2);
        }
        return random.nextLong(kind <= 3 ? 150 : 20);
    }

    private void section(Locks locks, String task, SocketChannel socket, BufferedReader answers) throws Exception {
        String name = "mutex-" + ThreadLocalRandom.current().nextInt(mutexes);
        long asked = now();
        Granted granted = locks.take(name, ThreadLocalRandom.current().nextLong(50, 3000));
        if (granted == null) {
            return;
        }
        long at = now();
        long number = numbers.getAndIncrement();
        long token = granted.token() == null ? at : granted.token();
        // A token of its own stands for a claim, too: there is one of each for a grant.
        String claim = granted.token() == null ? "unfenced" : String.format("%032x", token);
        write("granted", number, "mutex", name, 1, token, asked, at, task);
        long ends = at + periodMs() * 1_000_000;
        for (int looks = 0; ; looks++) {
            if (looks % LOOKS_PER_WRITE == 0) {
                socket.write(ByteBuffer.wrap((name + "\t" + token + "\t" + claim + "\t\n").getBytes(StandardCharsets.UTF_8)));
                answers.readLine();
            }
            long now = now();
            if (now >= ends) {
                write("exit", number, now);
                break;
            }
            // It believes that it holds until it lets go.
            write("seen", number, now, now);
            Thread.sleep(LOOK_EVERY_MS);
        }
        try {
            granted.held().close();
            write("settled", number, "released");
        } catch (Exception e) {
            write("settled", number, "not held");
            throw e;
        }
    }
}
