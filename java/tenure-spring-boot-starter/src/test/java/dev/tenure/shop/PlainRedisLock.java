package dev.tenure.shop;

import java.time.Duration;
import java.util.List;
import org.springframework.data.redis.core.StringRedisTemplate;
import org.springframework.data.redis.core.script.RedisScript;

/** The lock of Spring Data Redis that {@code docs/guides/java.md} shows: a whole one, on the key of a mutex of tenure. */
final class PlainRedisLock {
    private final StringRedisTemplate template;

    PlainRedisLock(StringRedisTemplate template) {
        this.template = template;
    }

    public boolean tryLock(String key, String id, Duration ttl) {
        return Boolean.TRUE.equals(template.opsForValue().setIfAbsent(key, id, ttl));        // SET key id NX PX|EX ttl
    }

    private static final RedisScript<Long> UNLOCK = RedisScript.of(
            "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end", Long.class);

    public boolean unlock(String key, String id) {
        return Long.valueOf(1).equals(template.execute(UNLOCK, List.of(key), id));
    }
}
