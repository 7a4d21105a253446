package dev.tenure.spring;

import java.time.Duration;
import org.springframework.boot.context.properties.ConfigurationProperties;
import org.springframework.boot.context.properties.bind.DefaultValue;

/**
 * The settings {@code tenure.*} of an application.
 *
 * @param url where {@code tenure serve} is: http://host:port, https://host:port or unix:/path/of/socket
 * @param token the token by which the server knows this application; none where the server asks for none
 * @param patience for how long everybody may be silent before a call fails as unavailable
 * @param ttl how long what is taken is held without renewal: locks of {@code @Locked}, of the LockRegistry and of ShedLock, and the worker id
 * @param label a text that others are shown with what this application holds; by default its name ({@code spring.application.name})
 * @param lockRegistry the LockRegistry for Spring Integration
 * @param shedlock the LockProvider for ShedLock
 * @param workerId the number of this instance
 */
@ConfigurationProperties("tenure")
public record TenureProperties(
        @DefaultValue("http://127.0.0.1:7070") String url,
        String token,
        @DefaultValue("15s") Duration patience,
        @DefaultValue("30s") Duration ttl,
        String label,
        @DefaultValue LockRegistry lockRegistry,
        @DefaultValue Shedlock shedlock,
        @DefaultValue WorkerId workerId) {

    /**
     * Settings of the LockRegistry.
     *
     * @param prefix what stands before a key in the name of its lock
     */
    public record LockRegistry(@DefaultValue("integration/") String prefix) {}

    /**
     * Settings of the LockProvider.
     *
     * @param prefix what stands before the name of a job in the name of its lock
     */
    public record Shedlock(@DefaultValue("shedlock/") String prefix) {}

    /**
     * Settings of the worker id.
     *
     * @param pool the slot pool that the number is taken of; without it there is no worker id
     * @param slots how many numbers there are, from 0 on: the same for all who name the pool
     * @param lockDelay for how long nobody else gets the number after this instance has vanished
     * @param waitFor how long the start waits for a number before it fails; 0 fails at once
     */
    public record WorkerId(
            String pool,
            @DefaultValue("1024") int slots,
            @DefaultValue("0s") Duration lockDelay,
            @DefaultValue("30s") Duration waitFor) {}

    /** Shows no token. */
    @Override
    public String toString() {
        return "TenureProperties[" + url + "]";
    }
}
