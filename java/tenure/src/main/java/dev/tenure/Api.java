package dev.tenure;

import dev.tenure.Transport.Answer;
import dev.tenure.Transport.Request;
import java.io.IOException;
import java.net.URLEncoder;
import java.nio.charset.StandardCharsets;
import java.security.SecureRandom;
import java.time.Duration;
import java.util.Base64;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/** Sends requests and says what their answers mean: a reply, a {@link TenureException}, or that nobody knows ({@link Unanswered}). */
final class Api {
    /** How long an answer may take that waits for nobody: the server gives up after 5 s. */
    static final Duration ANSWER_MAX = Duration.ofMillis(5_500);

    private static final SecureRandom RANDOM = new SecureRandom();

    private final Transport transport;
    private final Clock clock;
    private final long patience;

    Api(Transport transport, Clock clock, Duration patience) {
        this.transport = transport;
        this.clock = clock;
        this.patience = patience.toNanos();
    }

    Clock clock() {
        return clock;
    }

    /** For how long everybody may be silent before a call fails, in nanoseconds. */
    long patience() {
        return patience;
    }

    /** The outcome of a request is unknown: it may be done, it may be on its way, or it never came. */
    static final class Unanswered extends Exception {
        private static final long serialVersionUID = 1;

        /** Not before that, in nanoseconds; 0: the server did not say. */
        private final long retryAfter;

        Unanswered(String text, Throwable cause, long retryAfter) {
            super(text, cause);
            this.retryAfter = retryAfter;
        }

        long retryAfter() {
            return retryAfter;
        }

        UnavailableException asUnavailable(String resource) {
            String hint = getCause() instanceof TenureException known ? known.hint() : "is `tenure serve` there, and its store?";
            return new UnavailableException(getMessage(), hint, resource, null, this);
        }
    }

    /**
     * An answer of success.
     *
     * @param json what it says; null of one without a body
     * @param sent when the request was sent: what every deadline is counted from
     * @param isRepeated whether a copy of the request was sent before, and not answered
     */
    record Reply(int status, Object json, long sent, boolean isRepeated) {
        /** Its fields. */
        Map<?, ?> fields() throws Unanswered {
            return object(json);
        }
    }

    static Map<?, ?> object(Object json) throws Unanswered {
        if (json instanceof Map<?, ?> map) {
            return map;
        }
        throw notUnderstood(null);
    }

    static List<?> list(Object json) throws Unanswered {
        if (json instanceof List<?> list) {
            return list;
        }
        throw notUnderstood(null);
    }

    static long whole(Map<?, ?> fields, String name) throws Unanswered {
        if (fields.get(name) instanceof Long number && number >= 0) {
            return number;
        }
        throw notUnderstood(null);
    }

    static String text(Map<?, ?> fields, String name) throws Unanswered {
        if (fields.get(name) instanceof String text) {
            return text;
        }
        throw notUnderstood(null);
    }

    /** A field of bytes, which is text where it can be, and else in base64 under another name. Null: it is not there. */
    static byte[] bytes(Map<?, ?> fields, String name) throws Unanswered {
        if (fields.get(name) instanceof String text) {
            return text.getBytes(StandardCharsets.UTF_8);
        }
        try {
            return fields.get(name + "_base64") instanceof String text ? Base64.getDecoder().decode(text) : null;
        } catch (IllegalArgumentException e) {
            throw notUnderstood(e);
        }
    }

    static Unanswered notUnderstood(Throwable cause) {
        return new Unanswered("an answer that is not understood", cause, 0);
    }

    /** 128 random bits. */
    static String newId() {
        byte[] bytes = new byte[16];
        RANDOM.nextBytes(bytes);
        return HexFormat.of().formatHex(bytes);
    }

    static String encoded(String text) {
        return URLEncoder.encode(text, StandardCharsets.UTF_8).replace("+", "%20");
    }

    static Request request(String method, String path, Map<String, Object> body) {
        return new Request(method, path, body == null ? null : Json.write(body));
    }

    /** Fields for a body; those that are null are left out. */
    static Map<String, Object> body(Object... fields) {
        Map<String, Object> body = new LinkedHashMap<>();
        for (int i = 0; i < fields.length; i += 2) {
            if (fields[i + 1] != null) {
                body.put((String) fields[i], fields[i + 1]);
            }
        }
        return body;
    }

    /** Sends once, and waits for the answer. An interrupt is kept for later. */
    Reply once(Request request, Duration answerMax) throws Unanswered {
        try {
            return once(request, answerMax, false);
        } catch (InterruptedException e) {
            throw new AssertionError("interrupts are kept for later", e);
        }
    }

    /** Sends once, and waits for the answer, or for an interrupt: the outcome is unknown then, too. */
    Reply onceInterruptibly(Request request, Duration answerMax) throws Unanswered, InterruptedException {
        return once(request, answerMax, true);
    }

    private Reply once(Request request, Duration answerMax, boolean isInterruptible) throws Unanswered, InterruptedException {
        if (isInterruptible && Thread.interrupted()) {
            throw new InterruptedException();
        }
        // Before anything is sent: a deadline that is counted from here is never too late.
        long sent = clock.now();
        Transport.Call call = transport.send(request);
        long until = System.nanoTime() + answerMax.toNanos();
        boolean wasInterrupted = false;
        try {
            for (;;) {
                try {
                    Answer answer = call.answer().get(Math.max(1, until - System.nanoTime()), TimeUnit.NANOSECONDS);
                    return reply(answer, sent);
                } catch (InterruptedException e) {
                    if (isInterruptible) {
                        call.abandon();
                        throw e;
                    }
                    wasInterrupted = true;
                }
            }
        } catch (TimeoutException e) {
            call.abandon();
            throw new Unanswered("no answer within " + answerMax.toMillis() + " ms", e, 0);
        } catch (ExecutionException e) {
            throw new Unanswered("no answer: " + e.getCause(), e.getCause(), 0);
        } finally {
            if (wasInterrupted) {
                Thread.currentThread().interrupt();
            }
        }
    }

    /** Begins to send, and hands what came of it to somebody, on any thread: a reply, an {@code Unanswered} or a {@code TenureException}. */
    void begin(Request request, long answerMaxNanos, java.util.function.BiConsumer<Reply, Exception> then) {
        long sent = clock.now();
        Transport.Call call = transport.send(request);
        call.answer().orTimeout(answerMaxNanos, TimeUnit.NANOSECONDS).whenComplete((answer, failure) -> {
            try {
                if (failure != null) {
                    call.abandon();
                    throw new Unanswered("no answer: " + failure, failure, 0);
                }
                then.accept(reply(answer, sent), null);
            } catch (Unanswered | TenureException e) {
                then.accept(null, e);
            }
        });
    }

    /**
     * Repeats a request that may be done twice until it is answered, for as long as patience has. What is thrown after a copy that was not
     * answered says so ({@link #isRepeated}).
     */
    Reply repeat(Request request, String resource) {
        return repeat(request, resource, patience);
    }

    Reply repeat(Request request, String resource, long forNanos) {
        long until = clock.now() + forNanos;
        Backoff backoff = new Backoff();
        Unanswered before = null;
        for (;;) {
            try {
                Reply reply = once(request, Duration.ofNanos(Math.max(1, Math.min(ANSWER_MAX.toNanos(), until - clock.now()))));
                return new Reply(reply.status(), reply.json(), reply.sent(), before != null);
            } catch (TenureException e) {
                if (before != null) {
                    e.addSuppressed(before);
                }
                throw e;
            } catch (Unanswered e) {
                before = e;
                long pause = backoff.next(e);
                if (clock.now() + pause >= until) {
                    throw e.asUnavailable(resource);
                }
                pause(pause);
            }
        }
    }

    /** Whether a copy of the request was sent before, and not answered: it may have been done, or may still be. */
    static boolean isRepeated(TenureException e) {
        return e.getSuppressed().length > 0;
    }

    /** Waits; an interrupt is kept for later. */
    private static void pause(long nanos) {
        boolean wasInterrupted = false;
        long until = System.nanoTime() + nanos;
        for (long left = nanos; left > 0; left = until - System.nanoTime()) {
            try {
                TimeUnit.NANOSECONDS.sleep(left);
            } catch (InterruptedException e) {
                wasInterrupted = true;
            }
        }
        if (wasInterrupted) {
            Thread.currentThread().interrupt();
        }
    }

    private static Reply reply(Answer answer, long sent) throws Unanswered {
        int status = answer.status();
        Object json = null;
        try {
            if (status != 204) {
                json = Json.read(answer.body());
            }
        } catch (Json.Malformed e) {
            if (status < 300) {
                throw notUnderstood(e);
            }
        }
        if (status >= 200 && status < 300) {
            return new Reply(status, json, sent, false);
        }
        TenureException problem = json instanceof Map<?, ?> map ? TenureException.of(map) : null;
        boolean isUnknown = switch (status) {
            case 408, 429, 502, 503, 504 -> true;
            default -> false;
        };
        if (isUnknown || problem instanceof UnavailableException) {
            String text = problem == null ? "status " + status : problem.getMessage();
            throw new Unanswered(text, problem, retryAfter(answer.headers().get("retry-after")));
        }
        if (problem == null) {
            String hint = "something else than `tenure serve` has answered, or an older one";
            throw new TenureException(Kind.INTERNAL, "status " + status, hint, null, new IOException("no problem document"));
        }
        throw problem;
    }

    private static long retryAfter(String seconds) {
        // The server sends whole seconds; a date of some proxy is as good as nothing.
        return seconds != null && seconds.matches("[0-9]{1,4}") ? TimeUnit.SECONDS.toNanos(Long.parseLong(seconds)) : 0;
    }

    /** How long to wait before a request is repeated: longer each time, and not the same for all. */
    static final class Backoff {
        private static final long FIRST = 20_000_000;
        private static final long MOST = 1_000_000_000;

        private long next = FIRST;

        long next(Unanswered unanswered) {
            long pause = next / 2 + ThreadLocalRandom.current().nextLong(next / 2 + 1);
            next = Math.min(MOST, next * 2);
            return Math.max(pause, unanswered == null ? 0 : unanswered.retryAfter());
        }

        void reset() {
            next = FIRST;
        }
    }
}
