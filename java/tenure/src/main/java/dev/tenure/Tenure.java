package dev.tenure;

import dev.tenure.Api.Reply;
import dev.tenure.Api.Unanswered;
import java.net.URI;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Base64;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.atomic.AtomicInteger;
import javax.net.ssl.SSLContext;

/**
 * A client of {@code tenure serve}: distributed locks, leases, slots, elections and queues over HTTP, on whatever store the server has.
 *
 * <pre>{@code
 * Tenure tenure = Tenure.connect("http://127.0.0.1:7070");
 * try (Lease lease = tenure.mutex("billing/4711").acquire(Duration.ofSeconds(5))) {
 *     charge(lease.token());
 * }
 * }</pre>
 *
 * <p>One for each program. Nothing is sent before something is asked for. It has no dependency, and begins one thread for all its leases.
 *
 * <p><b>What it promises.</b> A lease is held only until a deadline that is counted from when the answered request was <em>sent</em>; each
 * {@link Lease#check()} compares it with the clock, which goes on while the machine sleeps. Requests are repeated with the same id until
 * they are answered, so a lost answer loses nothing. It cannot stop a thread, and a program may be paused between a check and the next
 * line: pass {@link Lease#token()} on.
 *
 * <p><b>At the end of the program</b> what threads hold that have ended (or that have called {@code System.exit}) is released. A thread that
 * still runs may still write, so what it holds ends at its ttl: close leases, or this client, before the end.
 */
public final class Tenure implements AutoCloseable {
    private static final Duration RELEASE_MAX = Duration.ofSeconds(2);

    private final Api api;
    private final Transport transport;
    private final Keeper keeper;
    private final AtomicInteger waiting = new AtomicInteger();
    private final Thread hook;

    private Tenure(Builder builder) {
        Map<String, String> headers = new HashMap<>();
        headers.put("Accept", "application/json");
        if (builder.token != null) {
            headers.put("Authorization", "Bearer " + builder.token);
        }
        transport = builder.transport(headers);
        api = new Api(transport, Clock.SYSTEM, builder.patience);
        keeper = new Keeper(api);
        hook = new Thread(this::exit, "tenure-exit");
        try {
            Runtime.getRuntime().addShutdownHook(hook);
        } catch (IllegalStateException e) {
            // The program ends already: what is taken now ends at its ttl, unless it is closed.
        }
    }

    /**
     * A client of the server at {@code http://host:port}, {@code https://host:port} or {@code unix:/path/of/socket}.
     *
     * @throws TenureException ({@link Kind#INVALID}) if it is none of these
     */
    public static Tenure connect(String url) {
        return builder(url).build();
    }

    /** The same with settings. */
    public static Builder builder(String url) {
        return new Builder(url);
    }

    /** Settings of a client. */
    public static final class Builder {
        private final String url;
        private String token;
        private SSLContext tls;
        private Duration patience = Duration.ofSeconds(15);

        private Builder(String url) {
            this.url = url;
        }

        /** The token by which the server knows this program: {@code tnr_...}. */
        public Builder token(String token) {
            if (!token.matches("[A-Za-z0-9_-]+")) {
                throw new TenureException(Kind.INVALID, "the token has other characters than letters, digits, - and _", null, null, null);
            }
            this.token = token;
            return this;
        }

        /** Whom {@code https} trusts, and the certificate of this program: by default what the JVM has. */
        public Builder tls(SSLContext tls) {
            this.tls = tls;
            return this;
        }

        /**
         * For how long everybody may be silent before a call fails as {@link UnavailableException}: 15 s, as long as a store keeps the place
         * of a silent waiter.
         */
        public Builder patience(Duration patience) {
            this.patience = patience;
            return this;
        }

        /** Makes the client. Nothing is sent yet. */
        public Tenure build() {
            return new Tenure(this);
        }

        private Transport transport(Map<String, String> headers) {
            if (url.startsWith("unix:")) {
                return new UnixTransport(Path.of(url.substring("unix:".length())), headers);
            }
            String lower = url.toLowerCase(Locale.ROOT);
            boolean isHttp = lower.startsWith("http://") || lower.startsWith("https://");
            try {
                URI uri = URI.create(url);
                if (isHttp && uri.getHost() != null && uri.getQuery() == null && uri.getUserInfo() == null) {
                    String base = url.endsWith("/") ? url.substring(0, url.length() - 1) : url;
                    return new HttpTransport(base, headers, Duration.ofSeconds(2), tls);
                }
            } catch (IllegalArgumentException e) {
                // Refused below; its text could show what is in the URL.
            }
            throw new TenureException(Kind.INVALID, "the URL of the server is not understood", "http://host:port, https://host:port or unix:/path", null, null);
        }
    }

    /** One may hold it at a time. */
    public TenureLock mutex(String name) {
        return new TenureLock(this, name, Map.of());
    }

    /** Many readers or one writer. */
    public TenureReadWriteLock readWriteLock(String name) {
        return new TenureReadWriteLock(this, name);
    }

    /** So many may hold it at a time. All who name it say the same capacity. */
    public TenureLock semaphore(String name, int capacity) {
        return semaphore(name, capacity, 1);
    }

    /** The same, of which a lease takes {@code weight} units. */
    public TenureLock semaphore(String name, int capacity, int weight) {
        return new TenureLock(this, name, fields("kind", "semaphore", "capacity", (long) capacity, "weight", (long) weight));
    }

    /** Numbers from 0 on, each held by one at a time: {@link Lease#slot()}. */
    public TenureLock slotPool(String name, int slots) {
        return new TenureLock(this, name, fields("kind", "slot_pool", "capacity", (long) slots));
    }

    /** One leader at a time. */
    public Election election(String name) {
        return new Election(this, mutex(name));
    }

    /** A value that one loads for all, and that is fresh for so long. */
    public SingleFlight singleFlight(String key, Duration fresh) {
        return new SingleFlight(this, mutex(key), fresh);
    }

    /** Work in line. */
    public TenureQueue queue(String name) {
        return new TenureQueue(this, name, Map.of());
    }

    /**
     * What this client has at this moment, for a monitor.
     *
     * @param held leases and deliveries
     * @param waiting acquisitions that wait
     * @param lost leases and deliveries that were lost since the client began
     * @param renewals that were answered since then
     */
    public record Counts(int held, int waiting, long lost, long renewals) {}

    /** What this client has at this moment. No round trip. */
    public Counts counts() {
        return new Counts(keeper.holds().size(), waiting.get(), keeper.lost(), keeper.renewals());
    }

    /**
     * Asks whether requests should be sent to the server: whether its store answers, and it is not about to end. One round trip.
     *
     * @throws UnavailableException if not, or if nobody answers
     */
    public void checkReady() {
        try {
            api.once(Api.request("GET", "/readyz", null), Api.ANSWER_MAX);
        } catch (Unanswered e) {
            throw e.asUnavailable(null);
        }
    }

    /** Has what it holds be lost, and releases it: for 2 s at most; the rest ends at its ttl. The client is of no use afterwards. */
    @Override
    public void close() {
        try {
            Runtime.getRuntime().removeShutdownHook(hook);
        } catch (IllegalStateException e) {
            // The program ends already, and the hook finds nothing.
        }
        for (Hold hold : keeper.holds()) {
            // First nobody believes in it, then others may have it.
            hold.lose("the client was closed", null);
            releaseLater(hold);
        }
        keeper.drain(RELEASE_MAX);
        keeper.close();
        transport.close();
    }

    /** At the end of the program. */
    private void exit() {
        for (Hold hold : keeper.holds()) {
            // A thread that runs may write until the JVM halts: its lock must not be another's by then.
            if (hasEnded(hold.owner) && hold.letGo()) {
                releaseLater(hold);
            }
        }
        keeper.drain(RELEASE_MAX);
    }

    private static boolean hasEnded(Thread thread) {
        if (!thread.isAlive()) {
            return true;
        }
        for (StackTraceElement frame : thread.getStackTrace()) {
            // It has called `System.exit`, which does not return.
            if (frame.getClassName().equals("java.lang.Shutdown")) {
                return true;
            }
        }
        return false;
    }

    void releaseLater(Hold hold) {
        if (hold.isDelivery) {
            keeper.later(Api.request("POST", "/v1/deliveries/" + hold.claim + "/return", Api.body("queue", hold.name)), hold.ttlSeen());
        } else {
            keeper.releaseLater(hold.name, hold.claim, hold.ttlSeen());
        }
    }

    private static Map<String, Object> fields(Object... fields) {
        return new LinkedHashMap<>(Api.body(fields));
    }

    Api api() {
        return api;
    }

    Clock clock() {
        return api.clock();
    }

    Keeper keeper() {
        return keeper;
    }

    void waiting(int change) {
        waiting.addAndGet(change);
    }

    /** Renews what was granted from now on. */
    Hold hold(Hold hold) {
        keeper.add(hold);
        return hold;
    }

    /** The request that ends a claim. */
    static Transport.Request release(String name, String claim) {
        return Api.request("DELETE", "/v1/claims/" + claim + "?name=" + Api.encoded(name), null);
    }

    boolean release(Hold hold) {
        keeper.remove(hold);
        try {
            Reply reply = api.repeat(release(hold.name, hold.claim), hold.name, RELEASE_MAX.toNanos());
            // After a copy that was not answered, "no" means that it was that copy.
            return Boolean.TRUE.equals(reply.fields().get("released")) || reply.isRepeated();
        } catch (UnavailableException e) {
            releaseLater(hold);
            throw e;
        } catch (Unanswered e) {
            releaseLater(hold);
            throw e.asUnavailable(hold.name);
        }
    }

    void publish(Hold hold, byte[] value, Duration fresh, Duration stale) {
        Map<String, Object> body = Api.body(
                "name", hold.name,
                "value_base64", Base64.getEncoder().encodeToString(value),
                "fresh_ms", fresh == null ? null : fresh.toMillis(),
                "stale_ms", stale == null ? null : stale.toMillis());
        try {
            api.repeat(Api.request("PUT", "/v1/claims/" + hold.claim + "/value", body), hold.name);
        } catch (LostException e) {
            hold.lose("the store has ended it", e);
            throw e;
        }
    }

    Optional<Election.Leader> leader(String name) {
        try {
            Reply reply = api.repeat(Api.request("GET", "/v1/leader?name=" + Api.encoded(name), null), name);
            return Optional.of(Election.leader(reply.fields()));
        } catch (Unanswered e) {
            throw e.asUnavailable(name);
        } catch (TenureException e) {
            if (e.kind() == Kind.NOT_FOUND && name.equals(e.resource())) {
                return Optional.empty();
            }
            throw e;
        }
    }
}
