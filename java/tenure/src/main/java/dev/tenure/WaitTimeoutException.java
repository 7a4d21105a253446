package dev.tenure;

import java.time.Duration;

/** It was not acquired in time. Nothing is held, and the place in the queue is given up. */
public final class WaitTimeoutException extends TenureException {
    private static final long serialVersionUID = 1;

    WaitTimeoutException(String resource, Duration wait) {
        super(Kind.TIMEOUT, "not acquired within " + wait.toMillis() + " ms", null, resource, null);
    }
}
