package dev.tenure;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;

/** A real {@code tenure serve} over a store of its own, on a Unix socket and by TCP. */
public final class Served implements AutoCloseable {
    /** The way to it. */
    public enum Way {
        TCP,
        UNIX
    }

    private final Process process;
    private final Path directory;
    public final String url;

    Served(Way way, String... more) {
        this("memory:", way, more);
    }

    /** Over this store. */
    public Served(String engine, Way way, String... more) {
        try {
            directory = Files.createTempDirectory("tenure-java");
            String listen = way == Way.TCP ? "127.0.0.1:0" : "unix:" + directory.resolve("s");
            List<String> line = new ArrayList<>(List.of(command(), "--engine", engine, "serve", "--listen", listen));
            line.addAll(List.of(more));
            ProcessBuilder builder = new ProcessBuilder(line).redirectOutput(ProcessBuilder.Redirect.DISCARD);
            builder.environment().keySet().removeIf(name -> name.startsWith("TENURE_"));
            process = builder.start();
            BufferedReader said = new BufferedReader(new InputStreamReader(process.getErrorStream(), StandardCharsets.UTF_8));
            String first = said.readLine();
            if (first == null || !first.startsWith("tenure: serving at ")) {
                throw new IllegalStateException("tenure serve says: " + first);
            }
            String address = first.substring("tenure: serving at ".length());
            url = way == Way.TCP ? "http://" + address : address;
            // A pipe that nobody reads would stop it.
            Threads.daemon("log of serve", () -> drain(said)).start();
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    /** The {@code tenure} that is tested. */
    public static String command() {
        String command = System.getenv("TENURE_TEST_COMMAND");
        if (command == null) {
            throw new IllegalStateException("TENURE_TEST_COMMAND names no `tenure`: run `cargo xtask test --java`");
        }
        return command;
    }

    private static void drain(BufferedReader said) {
        try {
            while (said.readLine() != null) {
                // Nobody wants it.
            }
        } catch (IOException e) {
            // It was ended.
        }
    }

    public Tenure connect() {
        return Tenure.connect(url);
    }

    /** Ends it as a power cut does. */
    public void kill() throws InterruptedException {
        process.destroyForcibly().waitFor(20, TimeUnit.SECONDS);
    }

    @Override
    public void close() {
        process.destroyForcibly();
        try (var paths = Files.walk(directory)) {
            paths.sorted(java.util.Comparator.reverseOrder()).forEach(path -> path.toFile().delete());
        } catch (IOException e) {
            // It is in the folder for what is temporary.
        }
    }
}
