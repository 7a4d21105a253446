package dev.tenure;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ConcurrentHashMap;

/** This client in the suite for thin clients: `crates/tenure-testkit/examples/thin_clients/driver.rs` has the protocol. */
final class Driver {
    private final Tenure tenure;
    private final Map<String, Lease> leases = new ConcurrentHashMap<>();
    private final Map<String, Delivery> deliveries = new ConcurrentHashMap<>();

    private Driver(String url) {
        tenure = Tenure.connect(url);
    }

    public static void main(String[] args) throws IOException, InterruptedException {
        List<Thread> commands = new ArrayList<>();
        Driver driver = new Driver(args[0]);
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null && !line.equals("exit"); line = input.readLine()) {
            String[] words = line.split(" ");
            if (words[0].equals("check")) {
                // In their order, and at once.
                driver.answer(words);
            } else {
                Thread command = Threads.daemon("command", () -> driver.answer(words));
                commands.add(command);
                command.start();
            }
        }
        // What a thread holds that still runs is not released.
        for (Thread command : commands) {
            command.join();
        }
    }

    private static synchronized void say(String key, String text) {
        System.out.println(key + " " + text);
        System.out.flush();
    }

    private void answer(String[] words) {
        String key = words[1];
        try {
            say(key, done(words));
        } catch (TenureException e) {
            say(key, "failed " + e.kind().name().toLowerCase(Locale.ROOT));
        } catch (Exception e) {
            say(key, "failed " + e);
        }
    }

    private static Duration millis(String text) {
        return Duration.ofMillis(Long.parseLong(text));
    }

    private String granted(String key, Lease lease) {
        leases.put(key, lease);
        lease.onLost(loss -> say(key, "told"));
        return "granted " + lease.token();
    }

    private String done(String[] words) throws Exception {
        String key = words[1];
        switch (words[0]) {
            case "acquire":
                return granted(key, tenure.mutex(words[2]).ttl(millis(words[3])).acquire(millis(words[4])));
            case "try":
                Optional<Lease> lease = tenure.mutex(words[2]).ttl(millis(words[3])).tryAcquire();
                return lease.map(taken -> granted(key, taken)).orElse("busy");
            case "check":
                try {
                    leases.get(key).check();
                    return "held";
                } catch (LostException e) {
                    return "lost";
                }
            case "release":
                return leases.get(key).release() ? "released yes" : "released no";
            case "push":
                tenure.queue(words[2]).push(words[3]);
                return "pushed";
            case "take":
                Optional<Delivery> taken = tenure.queue(words[2]).ttl(millis(words[3])).take(millis(words[4]));
                taken.ifPresent(delivery -> deliveries.put(key, delivery));
                return taken.map(delivery -> "taken " + delivery.text()).orElse("nothing");
            case "ack":
                deliveries.get(key).ack();
                return "settled";
            case "close":
                tenure.close();
                return "closed";
            default:
                return "failed unknown";
        }
    }
}
