package dev.tenure.spring;

import java.lang.annotation.Documented;
import java.lang.annotation.ElementType;
import java.lang.annotation.Retention;
import java.lang.annotation.RetentionPolicy;
import java.lang.annotation.Target;

/**
 * Has a parameter of type {@code long} of a method with {@link Locked} or {@link QueueListener} be the fencing token: larger than that of
 * every earlier grant. What the method writes to keeps the largest token, and refuses what comes with a smaller one.
 */
@Documented
@Retention(RetentionPolicy.RUNTIME)
@Target(ElementType.PARAMETER)
public @interface FencingToken {}
