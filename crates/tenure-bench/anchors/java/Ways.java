package anchors;

import dev.tenure.Lease;
import dev.tenure.Tenure;
import dev.tenure.TenureLock;
import java.net.URI;
import java.time.Duration;
import java.time.Instant;
import java.util.Optional;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.SimpleLock;
import net.javacrumbs.shedlock.provider.redis.jedis4.JedisLockProvider;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.ExponentialBackoffRetry;
import org.redisson.Redisson;
import org.redisson.api.RFencedLock;
import org.redisson.api.RLock;
import org.redisson.api.RSemaphore;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;
import redis.clients.jedis.JedisPool;
import redis.clients.jedis.JedisPoolConfig;

/** How each lock is taken and released, as its own page shows it. */
final class Ways {
    /** How often ShedLock is asked, which never waits. */
    private static final Duration ASK_EVERY = Duration.ofMillis(50);

    private Ways() {}

    /** A lock of one worker. */
    interface Way {
        /** Waits for it, and returns what releases it. */
        AutoCloseable take() throws Exception;
    }

    /** Makes the lock of that name for one worker. */
    interface Client {
        Way of(String name) throws Exception;
    }

    static Client connect(String side, String url, Duration ttl, int workers) throws Exception {
        return switch (side) {
            case "redisson" -> rLock(redisson(url, ttl));
            case "redisson-fenced" -> fencedLock(redisson(url, ttl));
            case "redisson-semaphore" -> semaphore(redisson(url, ttl));
            case "curator" -> mutex(curator(url, ttl));
            case "shedlock" -> shedLock(url, ttl, workers);
            case "tenure-java" -> tenure(url, ttl);
            default -> throw new IllegalArgumentException(side);
        };
    }

    /** With a watchdog that keeps a lock for a ttl. */
    static RedissonClient redisson(String url, Duration ttl) {
        Config config = new Config();
        config.setLockWatchdogTimeout(ttl.toMillis());
        URI uri = URI.create(url);
        config.useSingleServer().setAddress("redis://" + uri.getHost() + ":" + uri.getPort());
        return Redisson.create(config);
    }

    private static Client rLock(RedissonClient redisson) {
        return name -> {
            RLock lock = redisson.getLock(name);
            return () -> {
                lock.lock();
                return lock::unlock;
            };
        };
    }

    private static Client fencedLock(RedissonClient redisson) {
        return name -> {
            RFencedLock lock = redisson.getFencedLock(name);
            return () -> {
                lock.lockAndGetToken();
                return lock::unlock;
            };
        };
    }

    /** It has no owner and no ttl: what a process held that has died is gone. */
    private static Client semaphore(RedissonClient redisson) {
        return name -> {
            RSemaphore semaphore = redisson.getSemaphore(name);
            semaphore.trySetPermits(1);
            return () -> {
                semaphore.acquire();
                return semaphore::release;
            };
        };
    }

    /** Of a session that lives for a ttl. */
    static CuratorFramework curator(String url, Duration ttl) throws InterruptedException {
        String servers = URI.create(url).getAuthority();
        CuratorFramework curator =
                CuratorFrameworkFactory.newClient(servers, (int) ttl.toMillis(), 5_000, new ExponentialBackoffRetry(100, 5));
        curator.start();
        curator.blockUntilConnected();
        return curator;
    }

    private static Client mutex(CuratorFramework curator) {
        return name -> {
            InterProcessMutex mutex = new InterProcessMutex(curator, "/anchors/" + name.replace('/', '-'));
            return () -> {
                mutex.acquire();
                return mutex::release;
            };
        };
    }

    private static Client shedLock(String url, Duration ttl, int workers) {
        URI uri = URI.create(url);
        JedisPoolConfig pool = new JedisPoolConfig();
        pool.setMaxTotal(workers);
        pool.setMaxIdle(workers);
        JedisLockProvider provider = new JedisLockProvider(new JedisPool(pool, uri.getHost(), uri.getPort()), "anchors");
        return name -> () -> {
            for (;;) {
                Optional<SimpleLock> lock = provider.lock(new LockConfiguration(Instant.now(), name, ttl, Duration.ZERO));
                if (lock.isPresent()) {
                    return lock.get()::unlock;
                }
                Thread.sleep(ASK_EVERY.toMillis());
            }
        };
    }

    private static Client tenure(String url, Duration ttl) {
        Tenure tenure = Tenure.connect(url);
        return name -> {
            TenureLock mutex = tenure.mutex(name).ttl(ttl);
            return () -> {
                Lease lease = mutex.acquire();
                return lease::close;
            };
        };
    }
}
