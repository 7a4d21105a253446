package dev.tenure;

import java.util.Map;
import java.util.concurrent.CompletableFuture;

/** How requests reach the server. It repeats nothing: whoever calls knows what may be repeated. */
interface Transport {
    /** Begins to send. The future fails with an {@code IOException} where no whole answer came. */
    Call send(Request request);

    /** Closes connections that rest. */
    void close();

    /** What is sent. {@code body} may be null. */
    record Request(String method, String path, byte[] body) {}

    /** What came. Names of headers are in lower case. */
    record Answer(int status, Map<String, String> headers, byte[] body) {}

    /** A request under way. */
    interface Call {
        CompletableFuture<Answer> answer();

        /** Nobody waits for it any more: its connection is not used again, so that a late answer is nobody's. */
        void abandon();
    }
}
