"""Measures one side in a process of its own, and prints what it found as JSON.

    python measure.py STORE SIDE pairs|changes threads|tasks WORKERS SECONDS URL...
    python measure.py STORE SIDE hold|rival 0 0 0 URL...
"""

import asyncio
import ctypes
import json
import os
import sys
import threading
import time

import sides

WARM_UP = 1.0
#: A call in C that keeps the interpreter, and the ttl that it is longer than, in seconds.
CALL, SHORT_TTL = 5, 3


class Tally:
    """What all workers have done."""

    def __init__(self):
        self.pairs = 0
        self.changes = 0
        self.last = None
        self.is_over = False

    def held(self, worker):
        """Called under the lock that all workers want, or under a worker's own: the interpreter's lock makes the sums whole enough."""
        self.pairs += 1
        if self.last != worker:
            self.last = worker
            self.changes += 1


def sent(urls, commands):
    """How many of these commands the servers have been sent. None where nobody counts."""
    if not urls[0].startswith("redis:"):
        return None
    import redis

    total = 0
    for url in urls:
        with redis.Redis.from_url(url) as client:
            counted = client.info("commandstats")
        total += sum(counted.get(f"cmdstat_{command}", {"calls": 0})["calls"] for command in commands)
    return total


def names(what, workers):
    """One name for all, or one for each; of this process alone: who was measured before has left holds and waiters behind."""
    here = f"bench/{os.getpid()}"
    return [f"{here}/all"] * workers if what == "changes" else [f"{here}/{worker}" for worker in range(workers)]


def with_threads(side, tally, what, workers, watch):
    def work(worker, lock):
        while not tally.is_over:
            with lock:
                tally.held(worker)

    of = [(worker, side.lock(name)) for worker, name in enumerate(names(what, workers))]
    threads = [threading.Thread(target=work, args=each, daemon=True) for each in of]
    for thread in threads:
        thread.start()
    return watch(time.sleep)


def with_tasks(side, tally, what, workers, watch):
    async def work(worker, lock):
        while not tally.is_over:
            async with lock:
                tally.held(worker)

    async def main():
        locks = [side.alock(name) for name in names(what, workers)]
        tasks = [asyncio.ensure_future(work(*each)) for each in enumerate(locks)]
        found = await asyncio.get_running_loop().run_in_executor(None, watch, time.sleep)
        for task in tasks:
            if task.done():
                task.result()
        return found

    return asyncio.run(main())


def rates(side, what, how, workers, seconds, urls):
    """Pairs or changes a second, and commands for each."""
    tally = Tally()

    def watch(pause):
        pause(WARM_UP)
        before, sent_before, began = vars(tally).copy(), sent(urls, side.commands), time.monotonic()
        pause(seconds)
        done = getattr(tally, what) - before[what]
        took = time.monotonic() - began
        sent_after = sent(urls, side.commands)
        commands = None if sent_after is None else (sent_after - sent_before) / max(done, 1)
        return {"rate": done / took, "commands": commands}

    found = (with_threads if how == "threads" else with_tasks)(side, tally, what, workers, watch)
    print(json.dumps(found), flush=True)
    # Some workers wait in a poll, and nobody needs them any more.
    tally.is_over = True


def hold(side):
    """Holds while a call in C keeps the interpreter. `held`, `called` and `left` are when, on a clock that all processes share."""
    lock = side.lock("bench/call")
    lock.__enter__()
    print("held", flush=True)
    sys.stdin.readline()
    ctypes.PyDLL(None).sleep(CALL)
    print(time.clock_gettime(time.CLOCK_BOOTTIME), flush=True)
    try:
        lock.__exit__(None, None, None)
        print("released", flush=True)
    except Exception as error:
        print(type(error).__name__, flush=True)


def rival(side):
    """Waits for what the other one holds by then."""
    print("ready", flush=True)
    sys.stdin.readline()
    with side.lock("bench/call"):
        print(time.clock_gettime(time.CLOCK_BOOTTIME), flush=True)


def main():
    store, name, what, how, workers, seconds, *urls = sys.argv[1:]
    of = sides.side(store, name)
    if what in ("hold", "rival"):
        (hold if what == "hold" else rival)(of(urls, ttl=SHORT_TTL))
    else:
        rates(of(urls), what, how, int(workers), float(seconds), urls)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
    # Without an end: some sides' threads would wait for their locks first.
    os._exit(0)
