/**
 * tenure in a Spring Boot application: {@link dev.tenure.spring.Locked} and {@link dev.tenure.spring.QueueListener} on methods,
 * {@link dev.tenure.spring.WorkerId} as a bean, and where the application has them a {@code LockRegistry} of Spring Integration, a
 * {@code LockProvider} for ShedLock, health and meters. Begin with {@link dev.tenure.spring.TenureAutoConfiguration}.
 */
package dev.tenure.spring;
