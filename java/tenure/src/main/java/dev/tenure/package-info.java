/**
 * Distributed locks, leases, slots, elections and queues, by {@code tenure serve}. Begin with {@link dev.tenure.Tenure}.
 *
 * <p>All periods are {@link java.time.Duration}, whole milliseconds of which are sent. What goes wrong is a
 * {@link dev.tenure.TenureException}, by {@link dev.tenure.Kind}. An operation of the client itself, such as
 * {@link dev.tenure.Lease#check()}, makes no request; the others say how many round trips they take.
 */
package dev.tenure;
