"""One side of the comparison in a process of its own: compare.py says what its arguments and its lines are."""

import json
import os
import sys
import threading
import time
import traceback

import redis

_, WORK, WORKERS, TTL, URL, NAME = sys.argv[1:]
WORKERS, TTL = int(WORKERS), int(TTL) / 1000

client = redis.Redis.from_url(URL.split("?")[0])
holds, asked, longest = [0] * WORKERS, [None] * WORKERS, [0.0] * WORKERS
changes, last = 0, None


def run(worker):
    global changes, last
    lock = client.lock(f"{NAME}/{worker}" if WORK == "pairs" else NAME, timeout=TTL)
    try:
        while True:
            asked[worker] = time.monotonic()
            lock.acquire()
            longest[worker] = max(longest[worker], time.monotonic() - asked[worker])
            asked[worker] = None
            holds[worker] += 1
            # Under the lock that all want, or of no interest.
            if last != worker:
                last, changes = worker, changes + 1
            lock.release()
    except Exception:
        traceback.print_exc()
        os._exit(1)


def count():
    """Waits that still go on count as far as they have come."""
    now = time.monotonic()
    waits = [max(before, now - since if since else 0) for before, since in zip(longest, asked)]
    longest[:] = [0.0] * WORKERS
    return json.dumps({"holds": holds, "changes": changes, "longest_ms": max(waits) * 1000})


if WORK == "hold":
    lock = client.lock(NAME, timeout=TTL)
    print("ready", flush=True)
    sys.stdin.readline()
    lock.acquire()
    print("held", flush=True)
    sys.stdin.read()
    os._exit(0)
for worker in range(WORKERS):
    threading.Thread(target=run, args=(worker,), daemon=True).start()
print("ready", flush=True)
for _ in sys.stdin:
    print(count(), flush=True)
os._exit(0)
