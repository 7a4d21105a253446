package dev.tenure.shop;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.tenure.Served;
import io.lettuce.core.RedisClient;
import io.lettuce.core.ScriptOutputType;
import io.lettuce.core.SetArgs;
import io.lettuce.core.api.StatefulRedisConnection;
import io.lettuce.core.api.sync.RedisCommands;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.springframework.context.ConfigurableApplicationContext;
import org.springframework.data.redis.connection.RedisStandaloneConfiguration;
import org.springframework.data.redis.connection.jedis.JedisConnectionFactory;
import org.springframework.data.redis.core.StringRedisTemplate;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.params.SetParams;

/** Clients that set a key of Redis and {@code tenure run} exclude each other on the same key. */
final class SameKeyTest {
    private static final String UNLOCK =
            "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end";

    private static Site site;
    private static ConfigurableApplicationContext application;

    /** As a client writes it. */
    private interface PlainLock {
        boolean tryLock(String key, String id);

        boolean unlock(String key, String id);
    }

    @BeforeAll
    static void start() throws Exception {
        site = new Site();
        application = site.start("plain");
    }

    @AfterAll
    static void end() throws Exception {
        application.close();
        site.close();
    }

    private static PlainLock of(PlainRedisLock lock) {
        return new PlainLock() {
            @Override
            public boolean tryLock(String key, String id) {
                return lock.tryLock(key, id, Duration.ofSeconds(30));
            }

            @Override
            public boolean unlock(String key, String id) {
                return lock.unlock(key, id);
            }
        };
    }

    @Test
    void springDataRedisOnLettuce() throws Exception {
        contends(of(new PlainRedisLock(application.getBean(StringRedisTemplate.class))));
    }

    @Test
    void springDataRedisOnJedis() throws Exception {
        JedisConnectionFactory factory = new JedisConnectionFactory(new RedisStandaloneConfiguration("127.0.0.1", site.redis.port));
        factory.afterPropertiesSet();
        factory.start();
        contends(of(new PlainRedisLock(new StringRedisTemplate(factory))));
        factory.destroy();
    }

    @Test
    void lettuce() throws Exception {
        RedisClient client = RedisClient.create(site.redis.url());
        try (StatefulRedisConnection<String, String> connection = client.connect()) {
            RedisCommands<String, String> commands = connection.sync();
            contends(new PlainLock() {
                @Override
                public boolean tryLock(String key, String id) {
                    return "OK".equals(commands.set(key, id, SetArgs.Builder.nx().px(30_000)));
                }

                @Override
                public boolean unlock(String key, String id) {
                    return Long.valueOf(1).equals(commands.eval(UNLOCK, ScriptOutputType.INTEGER, new String[] {key}, id));
                }
            });
        }
        client.shutdown();
    }

    @Test
    void jedis() throws Exception {
        try (Jedis jedis = site.redis.connect()) {
            contends(new PlainLock() {
                @Override
                public boolean tryLock(String key, String id) {
                    return "OK".equals(jedis.set(key, id, SetParams.setParams().nx().px(30_000)));
                }

                @Override
                public boolean unlock(String key, String id) {
                    return Long.valueOf(1).equals(jedis.eval(UNLOCK, List.of(key), List.of(id)));
                }
            });
        }
    }

    private static void contends(PlainLock lock) throws Exception {
        // The client holds it: `tenure run` is busy, and runs as soon as it is free.
        assertTrue(lock.tryLock("locks:billing", "an id"));
        assertEquals(75, tenure("--wait", "0s", "billing", "--", "true").waitFor());
        Process waits = tenure("--wait", "60s", "billing", "--", "true");
        assertFalse(waits.waitFor(300, TimeUnit.MILLISECONDS));
        assertTrue(lock.unlock("locks:billing", "an id"));
        assertEquals(0, waits.waitFor());
        // `tenure run` holds it: the client does not get it, cannot release it, and gets it afterwards.
        Process holds = tenure("billing", "--", "sh", "-c", "echo holds; read line");
        BufferedReader said = new BufferedReader(new InputStreamReader(holds.getInputStream(), StandardCharsets.UTF_8));
        assertEquals("holds", said.readLine());
        assertFalse(lock.tryLock("locks:billing", "another id"));
        assertFalse(lock.unlock("locks:billing", "another id"));
        assertFalse(lock.tryLock("locks:billing", "another id"));
        holds.getOutputStream().close();
        holds.waitFor();
        assertTrue(lock.tryLock("locks:billing", "another id"));
        assertTrue(lock.unlock("locks:billing", "another id"));
    }

    private static Process tenure(String... arguments) throws Exception {
        List<String> line = new ArrayList<>(List.of(Served.command(), "run"));
        line.addAll(List.of(arguments));
        ProcessBuilder builder = new ProcessBuilder(line).redirectError(ProcessBuilder.Redirect.DISCARD);
        builder.environment().keySet().removeIf(name -> name.startsWith("TENURE_"));
        builder.environment().put("TENURE_ENGINE", site.redis.url() + "?prefix=locks:");
        return builder.start();
    }
}
