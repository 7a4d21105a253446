"""A client's process whose tasks take mutexes by a lock of another library, as its own page shows it."""

import logging
import os
import random
import socket
import sys
import threading
import time
from urllib.parse import urlsplit

CLASSIC, URL, TTL, JOURNAL, RESOURCE, TASKS, MUTEXES = sys.argv[1:]
TTL, TASKS, MUTEXES = float(TTL), int(TASKS), int(MUTEXES)
LOOK_EVERY, LOOKS_PER_WRITE = 0.010, 3

logging.disable()
journal = os.open(JOURNAL, os.O_WRONLY | os.O_APPEND)
is_calm, is_over = threading.Event(), threading.Event()
holds = iter(range(1 << 62))


def now():
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def write(*parts):
    os.write(journal, ("\t".join(map(str, parts)) + "\n").encode())


class RedisPy:
    def __init__(self):
        import redis

        server = urlsplit(URL)
        # Of its own accord it waits for an answer for ever.
        self.client = redis.Redis(server.hostname, server.port, socket_timeout=1, socket_connect_timeout=1)

    def take(self, name, wait):
        lock = self.client.lock(f"lock:{name}", timeout=TTL, sleep=0.02)
        return lock if lock.acquire(blocking_timeout=wait) else None


class Kazoo:
    def __init__(self):
        from kazoo.client import KazooClient

        self.client = KazooClient(hosts=urlsplit(URL).netloc, timeout=TTL)
        self.client.start(timeout=5)

    def take(self, name, wait):
        from kazoo.exceptions import LockTimeout

        lock = self.client.Lock(f"/lock/{name}")
        try:
            return lock if lock.acquire(timeout=wait) else None
        except LockTimeout:
            return None


def period():
    kind = random.randrange(20)
    if kind == 0 and not is_calm.is_set():
        return random.uniform(0, TTL * 1.5)
    return random.uniform(0, 0.150 if kind <= 3 else 0.020)


def section(client, task, resource):
    name, asked = f"mutex-{random.randrange(MUTEXES)}", now()
    lock = client.take(name, random.uniform(0.05, 3))
    if lock is None:
        return
    granted, number = now(), next(holds)
    write("granted", number, "mutex", name, 1, granted, asked, granted, task)
    ends, looks = granted + int(period() * 1e9), 0
    while True:
        if looks % LOOKS_PER_WRITE == 0:
            resource.write(f"{name}\t{granted}\tunfenced\t\n")
            resource.flush()
            resource.readline()
        at, looks = now(), looks + 1
        if at >= ends:
            write("exit", number, at)
            break
        # It believes that it holds until it lets go.
        write("seen", number, at, at)
        time.sleep(LOOK_EVERY)
    try:
        lock.release()
        write("settled", number, "released")
    except Exception:
        write("settled", number, "not held")
        raise


def work(task):
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(RESOURCE)
    resource, client = connection.makefile("rw"), None
    while not is_over.is_set():
        try:
            client = client or {"redis-py": RedisPy, "kazoo": Kazoo}[CLASSIC]()
            section(client, task, resource)
        except Exception as error:
            text = " ".join(str(error).split())
            write("error", "classic", "unavailable", f"{type(error).__name__}: {text}")
            time.sleep(0.05)
        time.sleep(random.uniform(0, 0.06))


def listen():
    for line in sys.stdin:
        if line.strip() == "calm":
            is_calm.set()
    is_over.set()
    # Whoever waits or holds has nothing to say any more.
    time.sleep(5)
    os._exit(0)


threading.Thread(target=listen, daemon=True).start()
tasks = [threading.Thread(target=work, args=(f"mutex-{number}",)) for number in range(TASKS)]
[task.start() for task in tasks]
[task.join() for task in tasks]
os._exit(0)
