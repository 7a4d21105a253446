package dev.tenure.shop;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.ServerSocket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Comparator;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.exceptions.JedisConnectionException;
import redis.clients.jedis.exceptions.JedisDataException;

/** A real Redis of the test's own, which forgets nothing when it is killed. */
final class Redis implements AutoCloseable {
    private final Path directory;
    final int port;
    private Process process;

    Redis() throws IOException, InterruptedException {
        directory = Files.createTempDirectory("tenure-redis");
        port = free();
        start();
    }

    private static int free() {
        for (;;) {
            int port = ThreadLocalRandom.current().nextInt(20_000, 32_000);
            try (ServerSocket socket = new ServerSocket(port)) {
                return socket.getLocalPort();
            } catch (IOException e) {
                // Another's.
            }
        }
    }

    String url() {
        return "redis://127.0.0.1:" + port;
    }

    Jedis connect() {
        return new Jedis("127.0.0.1", port);
    }

    void start() throws IOException, InterruptedException {
        process = new ProcessBuilder("redis-server", "--bind", "127.0.0.1", "--port", "" + port, "--dir", directory.toString(),
                        "--appendonly", "yes", "--appendfsync", "always", "--save", "")
                .redirectOutput(ProcessBuilder.Redirect.DISCARD)
                .redirectErrorStream(true)
                .start();
        long until = System.nanoTime() + TimeUnit.SECONDS.toNanos(60);
        while (!isThere()) {
            if (!process.isAlive() || System.nanoTime() > until) {
                throw new IllegalStateException("redis-server does not start");
            }
            Thread.sleep(10);
        }
    }

    private boolean isThere() {
        try (Jedis jedis = connect()) {
            return "PONG".equals(jedis.ping());
        } catch (JedisConnectionException | JedisDataException e) {
            return false;
        }
    }

    void kill() throws InterruptedException {
        process.destroyForcibly().waitFor(20, TimeUnit.SECONDS);
    }

    @Override
    public void close() throws InterruptedException {
        kill();
        try (var paths = Files.walk(directory)) {
            paths.sorted(Comparator.reverseOrder()).forEach(path -> path.toFile().delete());
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }
}
