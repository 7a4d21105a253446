"""`cargo xtask bench anchors`: tenure beside the locks that people use, on the same stores in one run, in turn, each side in a process of its own.

Arguments: `--short` for one short round without faults, `--check` to see that every side works, without a figure.

A side is started as `PROGRAM SIDE WORK WORKERS TTL_MS URL NAME`. With WORK `pairs` each worker takes and releases a lock of its own, `NAME/0` and so on;
with `changes` all want `NAME`. It prints `ready`, and for each line that it reads one of JSON: how often each worker has held, how often another one than
before has, both since the beginning, and the longest wait since the last line, with those that go on. With WORK `hold` it takes `NAME` when it reads a line,
prints `held`, and keeps it until it is killed. It ends with its input. What it needs is in the environment, by `xtask/src/anchors.rs`.
"""

import concurrent.futures
import contextlib
import itertools
import json
import os
import pathlib
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).parent
TICKS = os.sysconf("SC_CLK_TCK")
JAVA = ["java", "-XX:+UseSerialGC", "-Xmx256m", "-cp", os.environ["TENURE_ANCHORS_JAVA"], "anchors.Side"]
RUST = [os.environ["TENURE_ANCHORS_RUST"]]
#: How long a holder keeps its lock without renewal where it is killed, and elsewhere; and a session of ZooKeeper.
TTL_KILLED_MS, TTL_MS = 3_000, 30_000
#: After how long a lock that nobody had is taken to be gone.
GONE = 4 * TTL_KILLED_MS / 1000
SIZES = (("pairs", 1), ("pairs", 64), ("changes", 8), ("changes", 64))
#: What the next worker is measured beside, with the seed of its faults.
CHAOS_SECONDS, CHAOS_SEED = 20, 7


class Side:
    def __init__(self, title, store, command, calls=(), waits=True, classic=None):
        self.title, self.store, self.command = title, store, command
        #: The commands of Redis that it sends, not those that its scripts call; of ZooKeeper all requests are counted.
        self.calls = calls
        self.waits = waits
        #: What `tenure-chaos` calls it.
        self.classic = classic
        self.serves = command[-1] == "tenure-java"


NODE = ["node", str(HERE / "node_redlock.js"), "node-redlock"]
SIDES = [
    Side("tenure, Rust", "redis", [*RUST, "tenure"], ("evalsha", "fcall"), classic="tenure"),
    Side("tenure, Java over `tenure serve`", "redis", [*JAVA, "tenure-java"], ("evalsha", "fcall")),
    Side("Redisson `RLock`", "redis", [*JAVA, "redisson"], ("evalsha", "eval", "subscribe", "unsubscribe"), classic="redisson"),
    Side("Redisson `RFencedLock`", "redis", [*JAVA, "redisson-fenced"], ("evalsha", "eval", "subscribe", "unsubscribe"), classic="redisson-fenced"),
    Side("Redisson `RSemaphore`", "redis", [*JAVA, "redisson-semaphore"], ("evalsha", "eval", "subscribe", "unsubscribe")),
    Side("ShedLock", "redis", [*JAVA, "shedlock"], ("set", "del", "eval", "evalsha"), waits=False),
    Side("redsync", "redis", [os.environ["TENURE_ANCHORS_GO"], "redsync"], ("set", "eval", "evalsha")),
    Side("rslock", "redis", [*RUST, "rslock"], ("set", "eval", "evalsha")),
    Side("redis-py", "redis", [sys.executable, str(HERE / "redis_py.py"), "redis-py"], ("set", "eval", "evalsha"), classic="redis-py"),
    Side("node-redlock", "redis", NODE, ("eval", "evalsha")),
    Side("tenure, Rust", "zookeeper", [*RUST, "tenure"], classic="tenure"),
    Side("Curator `InterProcessMutex`", "zookeeper", [*JAVA, "curator"], classic="curator"),
]


class Store:
    """A server, what it has done so far, and what stands before it."""

    def __init__(self, name, folder):
        program = [os.environ["TENURE_TEST_STORES"], name]
        self.process = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.name, self.url = name, self.process.stdout.readline().strip()
        self.address = re.search(r"//([^:/]+):(\d+)", self.url).groups()
        self.serve = None
        if name == "redis":
            self.socket = f"{folder}/tenure.sock"
            command = [os.environ["TENURE_COMMAND"], "--engine", self.url, "serve", "--listen", f"unix:{self.socket}"]
            # It writes a line for each request.
            self.serve = subprocess.Popen(command, stderr=subprocess.DEVNULL)
            while not os.path.exists(self.socket):
                assert self.serve.poll() is None, "`tenure serve` has ended"
                time.sleep(0.05)

    def url_for(self, side, ttl_ms):
        if self.name == "zookeeper" and side.classic == "tenure":
            # When a client that has died is gone is a setting of ours, as it is of Curator. The servers of the tests tick each 200 ms.
            return f"{self.url}?session_timeout={ttl_ms // 1000}s&tick=200ms"
        return f"unix:{self.socket}" if side.serves else self.url

    def processor(self):
        """Seconds of all processes that `stores` has started."""
        return sum(processor(pid) for pid in descendants(self.process.pid))

    def ask(self, text):
        with socket.create_connection(self.address) as connection:
            connection.sendall(text)
            parts = []
            while part := connection.recv(1 << 16):
                parts.append(part)
        return b"".join(parts).decode()

    def calls(self, side):
        if self.name == "zookeeper":
            return int(re.search(r"Received: (\d+)", self.ask(b"srvr")).group(1))
        counted = self.ask(b"INFO commandstats\r\nQUIT\r\n")
        return sum(int(calls) for name, calls in re.findall(r"cmdstat_([^:]+):calls=(\d+)", counted) if name in side.calls)

    def close(self):
        if self.serve:
            self.serve.kill()
            self.serve.wait()
        self.process.communicate(timeout=60)


def processor(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def descendants(pid):
    parents = {}
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            # It has ended.
            continue
    found = [pid]
    for one in found:
        found.extend(child for child, parent in parents.items() if parent == one)
    return found[1:]


names = (f"anchors/{os.getpid()}/{number}" for number in itertools.count())


def start(side, store, work, workers, ttl_ms, name):
    command = [*side.command, work, workers, ttl_ms, store.url_for(side, ttl_ms), name]
    return subprocess.Popen(list(map(str, command)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def say(process, line):
    try:
        process.stdin.write(line)
        process.stdin.flush()
    except BrokenPipeError:
        # The end of its output says it, too.
        pass
    answer = process.stdout.readline()
    assert answer, f"{process.args[-5:]} has ended"
    return answer


def measure(*what):
    """One round of one side. A client that ends by an error of its own, such as a timeout on a busy machine, has two more attempts."""
    for attempt in (1, 2, 3):
        try:
            return measure_once(*what)
        except AssertionError as error:
            if attempt == 3:
                raise
            print(f"once more: {error}"[:200], file=sys.stderr, flush=True)
    return None


def measure_once(side, store, work, workers, warm_up, seconds):
    process = start(side, store, work, workers, TTL_MS, next(names))
    try:
        assert process.stdout.readline() == "ready\n", f"{process.args[-5:]} has ended"
        time.sleep(warm_up)
        ours = [process.pid] + ([store.serve.pid] if side.serves else [])

        def look():
            return json.loads(say(process, "count\n")), time.monotonic(), store.processor(), store.calls(side), sum(map(processor, ours))

        before, began, server, calls, client = look()
        time.sleep(seconds)
        after, ended, server_after, calls_after, client_after = look()
    finally:
        process.kill()
        process.wait()
    done = [late - early for late, early in zip(after["holds"], before["holds"])]
    count = sum(done) if work == "pairs" else after["changes"] - before["changes"]
    count = max(count, 1)
    return {
        "rate": count / (ended - began),
        "longest": after["longest_ms"],
        "spread": max(done) / min(done) if min(done) else float("inf"),
        "calls": (calls_after - calls) / count,
        "server": (server_after - server) * 1e6 / count,
        "client": (client_after - client) * 1e6 / count,
    }


def recovery(side, store):
    """How long after `kill -9` of the holder the next process has the lock, in seconds; None: it has not got it at all."""
    name = next(names)
    holder = start(side, store, "hold", 1, TTL_KILLED_MS, name)
    waiter = None
    try:
        waiter = start(side, store, "hold", 1, TTL_KILLED_MS, name)
        for process in (holder, waiter):
            assert process.stdout.readline() == "ready\n", f"{process.args} has ended"
        assert say(holder, "take\n") == "held\n"
        waiter.stdin.write("take\n")
        waiter.stdin.flush()
        # Until the holder has renewed, if it does.
        time.sleep(TTL_KILLED_MS / 1000 / 2)
        holder.kill()
        killed = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            line = pool.submit(waiter.stdout.readline)
            done, _ = concurrent.futures.wait([line], timeout=GONE)
            took = time.monotonic() - killed if done and line.result() == "held\n" else None
            waiter.kill()
        return took
    finally:
        for process in filter(None, (holder, waiter)):
            process.kill()
            process.wait()


def chaos(store):
    """What a schedule of faults does to each lock of a store, by its name for `tenure-chaos`."""
    command = [os.environ["TENURE_CHAOS"], "soak", store, "--seconds", str(CHAOS_SECONDS), "--seed", str(CHAOS_SEED)]
    said = subprocess.run([*command, "--classic", "--quiet"], stdout=subprocess.PIPE, text=True, check=False).stdout
    print("\n".join(line for line in said.splitlines() if line.strip()), file=sys.stderr)
    rows = re.findall(r"^  (\S+) +(\d+) +(\d+) +(\d+) +(\d+)$", said, re.MULTILINE)
    return {name: list(map(int, figures)) for name, *figures in rows}


def middle(found, key):
    return statistics.median(one[key] for one in found)


def number(value):
    if value == float("inf"):
        return "one got none"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def cells(side, found, recovered, violations):
    """The row of a side."""
    free = [found.get((side, *size)) for size in SIZES[:2]]
    wanted = [found.get((side, *size)) for size in SIZES[2:]]

    def both(list_, key):
        return " · ".join(number(middle(one, key)) for one in list_) if None not in list_ else "does not wait"

    def first(list_, key):
        return number(middle(list_, key))

    cost = lambda one: f"{first(one, 'calls')}, {first(one, 'server')} µs, {first(one, 'client')} µs" if one else "-"
    times = sorted(recovered[side], key=lambda one: (one is None, one)) or [None]
    back = f"not within {GONE:.0f} s" if times[-1] is None else f"{times[len(times) // 2]:.1f}, {times[-1]:.1f}"
    broken = violations.get(side.store, {}).get(side.classic)
    return [
        f"{side.store}: {side.title}",
        both(free, "rate"),
        cost(free[0]),
        both(wanted, "rate"),
        both(wanted, "longest"),
        both(wanted, "spread"),
        cost(wanted[1]),
        back,
        f"{broken[0]}, {broken[1]}, {broken[2]}, {broken[3]}" if broken else "-",
    ]


HEAD = [
    "side",
    "free locks: pairs/s with 1 · 64 workers",
    "a pair of 1: requests, server, client",
    "one lock: owner changes/s with 8 · 64 waiters",
    "longest wait, ms",
    "most acquisitions of a waiter against fewest",
    "a change with 64: requests, server, client",
    "holder killed, ttl 3 s: the next has it after (median, worst), s",
    f"{CHAOS_SECONDS} s of faults: mutexes held, two at once, late writes accepted, refused",
]


def versions():
    text = (HERE / "java/pom.xml").read_text()
    found = re.findall(r"<artifactId>(redisson|curator-recipes|shedlock[^<]*)</artifactId>\s*<version>([^<]+)", text)
    found += re.findall(r"(redsync|go-redis)/v\d+ v(\S+)", (HERE / "go/go.mod").read_text())
    for line in (["java", "-version"], ["node", "--version"], ["redis-server", "--version"]):
        said = subprocess.run(line, capture_output=True, text=True, check=True)
        found.append((line[0], (said.stdout + said.stderr).splitlines()[0]))
    return ", ".join(" ".join(one) for one in found) + f", Python {sys.version.split()[0]}"


def compare(is_short):
    rounds, warm_up, seconds = (1, 0.7, 0.5) if is_short else (3, 1.5, 1.0)
    found, recovered, violations = {}, {side: [] for side in SIDES}, {}
    with tempfile.TemporaryDirectory() as folder:
        for name in ("redis", "zookeeper"):
            sides = [side for side in SIDES if side.store == name]
            with contextlib.closing(Store(name, folder)) as store:
                for (work, workers), _ in itertools.product(SIZES, range(rounds)):
                    for side in sides:
                        if work == "pairs" or side.waits:
                            one = measure(side, store, work, workers, warm_up, seconds)
                            found.setdefault((side, work, workers), []).append(one)
                            print(f"{name} {side.title} {work} {workers}: {one}", file=sys.stderr, flush=True)
                # These wait more than they work.
                with concurrent.futures.ThreadPoolExecutor(len(sides)) as pool:
                    for _ in range(rounds):
                        for side, took in zip(sides, pool.map(lambda side: recovery(side, store), sides)):
                            recovered[side].append(took)
                            print(f"{name} {side.title} recovery: {took}", file=sys.stderr, flush=True)
            if not is_short:
                violations[name] = chaos(name)
    print(versions() + "\n")
    print(f"| {' | '.join(HEAD)} |\n|{' --- |' * len(HEAD)}")
    for side in SIDES:
        print(f"| {' | '.join(cells(side, found, recovered, violations))} |", flush=True)


def check():
    """Every side does what it is asked for. Nothing is timed."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("redis", "zookeeper"):
            with contextlib.closing(Store(name, folder)) as store:
                for side in (side for side in SIDES if side.store == name):
                    for work in ("pairs", "changes"):
                        process = start(side, store, work, 2, TTL_MS, next(names))
                        assert process.stdout.readline() == "ready\n", f"{process.args} has ended"
                        until = time.monotonic() + 60
                        while min(json.loads(say(process, "count\n"))["holds"]) < 2:
                            assert time.monotonic() < until, f"{process.args} does not get on"
                            time.sleep(0.05)
                        assert store.calls(side) > 0 and store.processor() > 0
                        process.kill()
                        process.wait()
                    assert recovery(side, store) is not None or side.command[-1] == "redisson-semaphore", f"{side.title} waits for ever"
                    print(f"works: {name}: {side.title}", flush=True)
    for store, classics in (("redis", ("redisson", "redisson-fenced")), ("zookeeper", ("curator",))):
        found = chaos(store)
        for classic in classics:
            assert found[classic][0] > 0, f"{classic} has taken nothing: {found}"


def main():
    global CHAOS_SECONDS
    arguments = sys.argv[1:]
    if arguments == ["--check"]:
        CHAOS_SECONDS = 4
        return check()
    if arguments not in ([], ["--short"]):
        sys.exit(f"{arguments} is not understood: --short, --check, or nothing")
    return compare(is_short=bool(arguments))


if __name__ == "__main__":
    main()
