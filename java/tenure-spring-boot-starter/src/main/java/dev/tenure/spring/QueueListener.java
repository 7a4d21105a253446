package dev.tenure.spring;

import java.lang.annotation.Documented;
import java.lang.annotation.ElementType;
import java.lang.annotation.Retention;
import java.lang.annotation.RetentionPolicy;
import java.lang.annotation.Target;

/**
 * Calls a method of a singleton bean with each item of a queue, from when the application has started until it ends.
 *
 * <p>Its parameters, each of which may be left out: {@code String} or {@code byte[]} is what was pushed, {@link dev.tenure.Delivery} all
 * about it, and a {@code long} with {@link FencingToken} its token. An item is acknowledged when the method returns, and retried, later each
 * time, if it throws. An item may come twice: the method must bear that, or what it writes to checks the token.
 *
 * <p>At the end of the application nothing more is taken, and the methods that work are waited for, before other beans are destroyed: for
 * {@code spring.lifecycle.timeout-per-shutdown-phase}. What is not done by then is handed out again.
 */
@Documented
@Retention(RetentionPolicy.RUNTIME)
@Target(ElementType.METHOD)
public @interface QueueListener {
    /** The name of the queue. Placeholders (<code>${...}</code>) are filled in, here and in the other settings. */
    String value();

    /** How many items it works on at a time. Those of one group still come one after the other. */
    String concurrency() default "1";

    /** How often an item is handed out before it becomes a dead letter. Nothing: without a limit. */
    String attemptsMax() default "";

    /** How long an item is this instance's without renewal. Nothing: 30 s. */
    String ttl() default "";
}
