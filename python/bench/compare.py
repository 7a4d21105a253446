"""`cargo xtask bench python`: tenure beside the locks that Python has, in one run, in turn, each in a process of its own.

`TENURE_TEST_STORES` is the program of the test kit that starts servers. Arguments: stores (all by default), `--short` for one short round.
"""

import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
from importlib import metadata

import sides

ROUNDS, SECONDS = 3, 2.0
PEERS = ("redis", "hiredis", "python-redis-lock", "pottery", "filelock", "kazoo")
MEASURE = str(pathlib.Path(__file__).with_name("measure.py"))
#: What is measured: with what, and by how many.
WORK = (("pairs", "threads", 1), ("pairs", "threads", 64), ("pairs", "tasks", 1), ("pairs", "tasks", 64)) + (
    ("changes", "threads", 8),
    ("changes", "threads", 64),
    ("changes", "tasks", 8),
    ("changes", "tasks", 64),
)
#: How many servers a store is.
SERVERS = {"redis": ["redis"], "redlock": ["redis"] * 3, "zookeeper": ["zookeeper"], "local": []}


def side(*arguments, **more):
    command = [sys.executable, MEASURE, *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **more)


def measured(*arguments):
    """What one side found."""
    process = side(*arguments)
    out, _ = process.communicate(timeout=120)
    if process.returncode:
        sys.exit(f"{arguments} ended with {process.returncode}")
    return json.loads(out)


def call(store, name, urls):
    """Whether a lease outlives a call that keeps the interpreter: after how many seconds a rival had it, and what the holder was told."""
    rival = side(store, name, "rival", 0, 0, 0, *urls)
    assert rival.stdout.readline() == "ready\n"
    holder = side(store, name, "hold", 0, 0, 0, *urls)
    assert holder.stdout.readline() == "held\n"
    for process in (rival, holder):
        process.stdin.write("\n")
        process.stdin.flush()
    called = float(holder.stdout.readline())
    told = holder.stdout.readline().strip()
    granted = float(rival.stdout.readline())
    for process in (holder, rival):
        process.communicate(timeout=60)
    early = called - granted
    return f"lost: a rival had it {early:.1f} s before the end of the call; then the holder: {told}" if early > 0 else "kept"


def figures(store, names, urls, work, rounds, seconds):
    """The medians of each side, which take turns: rate, and commands for each."""
    found = {name: [] for name in names}
    for _ in range(rounds):
        for name in names:
            found[name].append(measured(store, name, *work, seconds, *urls))

    def median(name, key):
        values = [one[key] for one in found[name]]
        return None if None in values else statistics.median(values)

    return {name: (median(name, "rate"), median(name, "commands")) for name in names}


def text(rate, commands):
    return f"{rate:,.0f}/s" + ("" if commands is None else f", {commands:.2f} commands")


def compare(store, urls, rounds, seconds):
    ours, theirs = sides.STORES[store]
    ours.prepare(urls)
    for work in WORK:
        what, how, workers = work
        verb = "alock" if how == "tasks" else "lock"
        peers = [name for name, of in theirs.items() if hasattr(of, verb)]
        if not peers:
            continue
        found = figures(store, ["tenure", *peers], urls, work, rounds, seconds)
        ours, our_commands = found["tenure"]
        for peer in peers:
            rate, commands = found[peer]
            ratio = f"{ours / rate:.2f}" if rate else "-"
            print(f"| {store}, {workers} {how}: {what} | {text(ours, our_commands)} | {peer}: {text(rate, commands)} | {ratio} |", flush=True)
    ours = call(store, "tenure", urls)
    for peer in theirs:
        print(f"| {store}: 5 s in C that keep the interpreter, ttl 3 s | {ours} | {peer}: {call(store, peer, urls)} | |", flush=True)


def main():
    arguments = sys.argv[1:]
    is_short = "--short" in arguments
    rounds, seconds = (1, 0.5) if is_short else (ROUNDS, SECONDS)
    wanted = [one for one in arguments if one != "--short"] or list(sides.STORES)
    unknown = [store for store in wanted if store not in sides.STORES]
    if unknown:
        sys.exit(f"no store {unknown[0]!r}; there are {', '.join(sides.STORES)}")
    print("Python " + sys.version.split()[0] + ", " + ", ".join(f"{peer} {metadata.version(peer)}" for peer in PEERS) + ".\n")
    print("| what | tenure | peer | ratio |\n| --- | --- | --- | --- |", flush=True)
    for store in wanted:
        with tempfile.TemporaryDirectory() as folder:
            program = [os.environ["TENURE_TEST_STORES"], *SERVERS[store]]
            servers = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            urls = [servers.stdout.readline().strip() for _ in SERVERS[store]] or [f"local:{folder}/locks"]
            compare(store, urls, rounds, seconds)
            servers.communicate(timeout=60)


if __name__ == "__main__":
    main()
