"""Works under redis-py's lock: python3 redis_py.py PORT KEY ROUNDS. Prints how often somebody else was inside."""

import sys
import time

import redis

port, key, rounds = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
server = redis.Redis(port=port)
intruders = 0
for _ in range(rounds):
    with server.lock(key, timeout=10, sleep=0.002):
        intruders += server.incr("inside") != 1
        time.sleep(0.002)
        intruders += server.decr("inside") != 0
    time.sleep(0.003)
print(intruders)
