"""Works under kazoo's lock: python3 kazoo_lock.py PORT PATH ROUNDS FILE. Prints how often somebody else was inside."""

import os
import sys
import time

from kazoo.client import KazooClient

port, path, rounds, inside = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
client = KazooClient(hosts=f"127.0.0.1:{port}")
client.start()
intruders = 0
for _ in range(rounds):
    with client.Lock(path, "kazoo"):
        try:
            os.close(os.open(inside, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            intruders += 1
        time.sleep(0.002)
        try:
            os.unlink(inside)
        except FileNotFoundError:
            intruders += 1
    time.sleep(0.003)
client.stop()
print(intruders)
