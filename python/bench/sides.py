"""What is compared: each side as its users have it, with as many locks on one client as they ask for.

A side opens its client when it is made, in the process that measures it. `lock` gives what `with` takes, `alock` what `async with` takes; a
side without tasks has no `alock`.
"""

import os
import subprocess
import sys

#: How long a hold lasts after its holder has died, in seconds: nothing that is measured lasts so long, but for the call that keeps the interpreter.
TTL = 30


class Tenure:
    """Ours, on any store."""

    #: What the client sends to Redis. What its scripts call is not sent.
    commands = ("fcall", "evalsha")

    def __init__(self, urls, ttl=TTL):
        import tenure

        self._ttl = ttl
        self._client = tenure.connect(urls[0])

    @staticmethod
    def prepare(urls):
        """What a store needs once."""

    def lock(self, name):
        return self._client.mutex(name, ttl=self._ttl)

    alock = lock


class OnZooKeeper(Tenure):
    """There the session has the time."""

    def __init__(self, urls, ttl=TTL):
        super().__init__([f"{urls[0]}/tenure?session_timeout={ttl}s&tick=200ms"])
        self._ttl = ttl

    def lock(self, name):
        return self._client.mutex(name)

    alock = lock


class OnRedlock(Tenure):
    """A majority of servers."""

    def __init__(self, urls, ttl=TTL):
        super().__init__([self._url(urls)], ttl)

    @staticmethod
    def _url(urls):
        return "redlock://" + ",".join(url.split("//")[1] for url in urls)

    @staticmethod
    def prepare(urls):
        """Lets new servers in at once: nobody has held anything on them."""
        command = [sys.executable, "-m", "tenure", "--engine", OnRedlock._url(urls), "doctor", "--init"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


class RedisPy:
    """The lock of redis-py, with its faster parser hiredis. It renews nothing."""

    commands = ("set", "evalsha")

    def __init__(self, urls, ttl=TTL):
        import redis
        import redis.asyncio

        self._ttl = ttl
        self._client = redis.Redis.from_url(urls[0])
        self._aclient = redis.asyncio.Redis.from_url(urls[0])

    def lock(self, name):
        return self._client.lock(name, timeout=self._ttl)

    def alock(self, name):
        return self._aclient.lock(name, timeout=self._ttl)


class PythonRedisLock:
    """python-redis-lock, which wakes waiters by BLPOP. A thread for each lock renews it where that is asked for: where the time is short."""

    commands = ("set", "evalsha", "blpop")

    def __init__(self, urls, ttl=TTL):
        import redis
        import redis_lock

        self._of = redis_lock.Lock
        self._settings = {"expire": ttl, "auto_renewal": ttl < TTL}
        self._client = redis.Redis.from_url(urls[0])

    def lock(self, name):
        return self._of(self._client, name, **self._settings)


class Pottery:
    """The Redlock of pottery. It renews nothing by itself."""

    commands = ("set", "evalsha")

    def __init__(self, urls, ttl=TTL):
        import pottery
        import redis
        import redis.asyncio

        self._of, self._aof, self._ttl = pottery.Redlock, pottery.AIORedlock, ttl
        self._masters = {redis.Redis.from_url(url) for url in urls}
        self._amasters = {redis.asyncio.Redis.from_url(url) for url in urls}

    def lock(self, name):
        return self._of(key=name, masters=self._masters, auto_release_time=self._ttl)

    def alock(self, name):
        return self._aof(key=name, masters=self._amasters, auto_release_time=self._ttl)


class FileLock:
    """filelock, on the same disk as ours. Its holds have no end; the system ends them with their process."""

    commands = ()

    def __init__(self, urls, ttl=TTL):
        import filelock

        self._of, self._aof = filelock.FileLock, filelock.AsyncFileLock
        self._folder = urls[0].split(":", 1)[1] + ".filelock"
        os.makedirs(self._folder, exist_ok=True)

    def _path(self, name):
        return os.path.join(self._folder, name.replace("/", "-"))

    def lock(self, name):
        return self._of(self._path(name))

    def alock(self, name):
        return self._aof(self._path(name))


class Kazoo:
    """kazoo's lock. Its session renews all."""

    commands = ()

    def __init__(self, urls, ttl=TTL):
        from kazoo.client import KazooClient

        self._client = KazooClient(hosts=urls[0].split("//")[1], timeout=ttl)
        self._client.start()

    def lock(self, name):
        return self._client.Lock("/kazoo/" + name.replace("/", "-"))


#: By store: ours, and who is compared with it.
STORES = {
    "redis": (Tenure, {"redis-py": RedisPy, "python-redis-lock": PythonRedisLock}),
    "redlock": (OnRedlock, {"pottery": Pottery}),
    "local": (Tenure, {"filelock": FileLock}),
    "zookeeper": (OnZooKeeper, {"kazoo": Kazoo}),
}


def side(store, name):
    """The class of a side."""
    ours, theirs = STORES[store]
    return theirs.get(name, ours)
