package dev.tenure.spring;

import java.lang.annotation.Documented;
import java.lang.annotation.ElementType;
import java.lang.annotation.Retention;
import java.lang.annotation.RetentionPolicy;
import java.lang.annotation.Target;

/**
 * Runs a method of a bean under a mutex of tenure: one call at a time in all instances of all applications that name it.
 *
 * <pre>{@code
 * @Locked(value = "billing/#{#id}", waitFor = "5s")
 * public void charge(long id, @FencingToken long token) {
 *     // calls pass any number as the token: it is set to that of the lease
 * }
 * }</pre>
 *
 * <p><b>What the caller gets.</b> {@link dev.tenure.WaitTimeoutException} if others hold it for longer than {@link #waitFor()};
 * {@link dev.tenure.LostException} if the lease was lost before the method returned: its result is not returned, since its work was not
 * protected to its end; what the method itself throws; {@link dev.tenure.UnavailableException} if nobody answers, and then the method was
 * not called. A method that does not declare {@code InterruptedException} throws {@code CancellationException} if its thread is interrupted
 * while it waits.
 *
 * <p><b>The loss of a lease stops no thread.</b> A method that works for long takes a parameter of type {@link dev.tenure.Lease}, and calls
 * {@link dev.tenure.Lease#check()} before each step. What it writes to checks the token: a parameter of type {@code long} with
 * {@link FencingToken}.
 *
 * <p><b>Transactions.</b> The lock is taken before a transaction of the same method begins, and released after it has ended, whatever the
 * order of the application's other advice. A commit under a lease that is lost is rolled back. A call inside of a transaction that runs
 * already is refused ({@code IllegalStateException}): the lock would be another's before that transaction is committed.
 *
 * <p><b>It is not re-entrant.</b> A thread that holds a lock and calls a method with the same name of a lock is refused
 * ({@code IllegalStateException}), as it would wait for itself.
 *
 * <p><b>Proxies.</b> As with {@code @Transactional}, a call from the same object ({@code this.charge(4711)}) takes no lock. Methods that cannot
 * be proxied (private, static, final) are refused at the start of the application. A method under {@code @Async} takes the lock on its own
 * thread. A method that returns work which is not done yet (a future, a reactive type) is refused with {@code IllegalStateException}.
 */
@Documented
@Retention(RetentionPolicy.RUNTIME)
@Target(ElementType.METHOD)
public @interface Locked {
    /**
     * The name of the lock: a text with expressions of SpEL in <code>#{...}</code>, of the arguments (<code>#{#id}</code>, <code>#{#order.id}</code>), of
     * beans (<code>#{@shop.name}</code>) and of properties of the bean, and placeholders in <code>${...}</code>. An expression that gives null or an
     * empty text is an {@code IllegalArgumentException}: different calls would share a lock by mistake.
     */
    String value();

    /** How long a call waits for it, in the order in which calls came: "5s", "500ms", "0s". Nothing: for as long as it takes. */
    String waitFor() default "";

    /** How long it is held without renewal. Nothing: {@code tenure.ttl}. */
    String ttl() default "";
}
