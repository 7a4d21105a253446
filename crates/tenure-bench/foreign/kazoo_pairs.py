"""Takes and releases kazoo's lock: python3 kazoo_pairs.py PORT THREADS WARM_UP PERIOD. Prints pairs for a second."""

import sys
import threading
import time

from kazoo.client import KazooClient

port, threads, warm_up, period = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])
client = KazooClient(hosts=f"127.0.0.1:{port}")
client.start()
pairs = [0] * threads
is_over = False


def work(number):
    while not is_over:
        with client.Lock(f"/kazoo/{number}"):
            pairs[number] += 1


workers = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(threads)]
for worker in workers:
    worker.start()
time.sleep(warm_up)
before, began = sum(pairs), time.monotonic()
time.sleep(period)
print((sum(pairs) - before) / (time.monotonic() - began))
is_over = True
for worker in workers:
    worker.join()
client.stop()
