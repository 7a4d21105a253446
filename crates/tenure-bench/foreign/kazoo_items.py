"""Pushes, takes and consumes items of kazoo's LockingQueue: python3 kazoo_items.py PORT THREADS WARM_UP PERIOD. Prints items for a second."""

import sys
import threading
import time

from kazoo.client import KazooClient

port, threads, warm_up, period = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])
client = KazooClient(hosts=f"127.0.0.1:{port}")
client.start()
items = [0] * threads
is_over = False


def work(number):
    # Each thread has its own: one holds one item at a time.
    queue = client.LockingQueue("/kazoo-queue")
    while not is_over:
        queue.put(b"x" * 100)
        queue.get()
        if queue.consume():
            items[number] += 1


workers = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(threads)]
for worker in workers:
    worker.start()
time.sleep(warm_up)
before, began = sum(items), time.monotonic()
time.sleep(period)
print((sum(items) - before) / (time.monotonic() - began))
is_over = True
for worker in workers:
    worker.join()
client.stop()
