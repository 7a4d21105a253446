"""Safe by design: forks, threads, greenlets, signals, ends."""

import os
import signal
import subprocess
import sys
import textwrap
import threading

import pytest

import tenure


def test_a_forked_child_connects_anew_and_touches_nothing_of_its_parents(shared_url, name):
    """Also while threads of the parent wait and hold."""
    locks = tenure.connect(shared_url)
    lease = locks.mutex(name).acquire()
    waiter = threading.Thread(target=lambda: locks.mutex(name).acquire().release())
    waiter.start()
    while not locks.view(name).waiting:
        pass
    for _ in range(20):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                assert lease.is_lost() and lease.expires_in() == 0
                with pytest.raises(tenure.Lost) as lost:
                    lease.check()
                assert "forked" in str(lost.value)
                assert lease.release() is False
                # Its own client, of the same object.
                with locks.mutex(f"{name}/{os.getpid()}", ttl=5):
                    assert locks.mutex(name).try_acquire() is None
                del lease
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(pid, 0)[1] == 0
        lease.check()
    assert locks.view(name).holds[0].token == lease.token
    lease.release()
    waiter.join(20)
    locks.close()


def test_a_child_of_multiprocessing_works_on(shared_url, name, python):
    code = """
import multiprocessing, sys, tenure
locks = tenure.connect(sys.argv[1])
def work(number):
    with locks.slot_pool(sys.argv[2] + "/pool", 4) as slot:
        return slot.number
if __name__ == "__main__":
    with locks.mutex(sys.argv[2]) as lease:
        with multiprocessing.get_context("fork").Pool(4) as pool:
            assert set(pool.map(work, range(40))) <= {0, 1, 2, 3}
        lease.check()
    print("done")
"""
    assert python(code, shared_url, name).stdout == "done\n"


def test_a_child_of_a_parent_that_never_asked_uses_local(local_url, name, python):
    code = """
import os, sys, tenure
locks = tenure.connect(sys.argv[1])
mutex = locks.mutex(sys.argv[2])
children = []
for _ in range(4):
    pid = os.fork()
    if pid == 0:
        for _ in range(20):
            with mutex: pass
        os._exit(0)
    children.append(pid)
assert all(os.waitpid(pid, 0)[1] == 0 for pid in children)
with mutex: print("done")
"""
    assert python(code, local_url, name).stdout == "done\n"


def test_a_signal_ends_a_wait_and_withdraws(url, name):
    locks, other = tenure.connect(url), tenure.connect(url)

    class Told(Exception):
        pass

    def tell(*_):
        raise Told

    before = signal.signal(signal.SIGUSR1, tell)
    try:
        with locks.mutex(name):
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGUSR1)).start()
            with pytest.raises(Told):
                other.mutex(name).acquire()
            while locks.view(name).waiting:
                pass
        assert locks.mutex(name).acquire(wait=20).release()
    finally:
        signal.signal(signal.SIGUSR1, before)
        locks.close()
        other.close()


def test_ctrl_c_ends_a_program_that_waits(local_url, name):
    code = """
import signal, sys, tenure
# A program that was started in the background inherits that it is ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
locks = tenure.connect(sys.argv[1])
print("waits", flush=True)
locks.mutex(sys.argv[2]).acquire()
"""
    locks = tenure.connect(local_url)
    with locks.mutex(name):
        process = subprocess.Popen(
            [sys.executable, "-c", code, local_url, name], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stdout.readline() == "waits\n"
        while not locks.view(name).waiting:
            pass
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=20)
        assert process.returncode == -signal.SIGINT and "KeyboardInterrupt" in said
        while locks.view(name).waiting:
            pass


def test_what_is_held_at_the_end_of_a_program_is_released(shared_url, name, python):
    """With a ttl of a minute, so that it is not its end."""
    code = """
import sys, threading, tenure
locks = tenure.connect(sys.argv[1])
lease = locks.mutex(sys.argv[2], ttl=60).acquire()
# Threads that wait and that hold do not keep it from ending.
def wait(): locks.mutex(sys.argv[2]).acquire()
def hold():
    kept = locks.mutex(sys.argv[2] + "/busy", ttl=60).acquire()
    has.set()
    threading.Event().wait()
has = threading.Event()
for work in (wait, hold): threading.Thread(target=work, daemon=True).start()
has.wait()
while not locks.view(sys.argv[2]).waiting: pass
print("ends")
"""
    done = python(code, shared_url, name, options=["-X", "dev"])
    assert done.stdout == "ends\n" and done.stderr == ""
    locks = tenure.connect(shared_url)
    with locks.mutex(name, wait=20):
        pass
    # Its thread may have worked until the end: only its ttl says that it does no more.
    assert locks.mutex(name + "/busy").try_acquire() is None
    locks.close()


def test_greenlets_wait_side_by_side(shared_url, name, python):
    pytest.importorskip("gevent")
    code = """
from gevent import monkey; monkey.patch_all()
import gevent, sys, tenure
locks = tenure.connect(sys.argv[1])
inside, most, ticks = [], [], []
def work():
    with locks.mutex(sys.argv[2]):
        inside.append(1); most.append(len(inside)); gevent.sleep(0.01); inside.pop()
def tick():
    while True:
        ticks.append(1); gevent.sleep(0.005)
ticking = gevent.spawn(tick)
gevent.joinall([gevent.spawn(work) for _ in range(20)], raise_error=True)
assert most == [1] * 20, most
with locks.mutex(sys.argv[2]):
    waiting = gevent.spawn(locks.mutex(sys.argv[2]).acquire)
    while not locks.view(sys.argv[2]).waiting: gevent.sleep(0.01)
    waiting.kill()
    while locks.view(sys.argv[2]).waiting: gevent.sleep(0.01)
assert len(ticks) > 20, ticks
print("done")
"""
    assert python(code, shared_url, name).stdout == "done\n"


def test_gunicorn_with_preload(redis_url, name, tmp_path):
    """The master connects before it forks, and its workers connect anew."""
    pytest.importorskip("gunicorn")
    (tmp_path / "app.py").write_text(
        textwrap.dedent(
            f"""
            import os, tenure
            locks = tenure.connect({redis_url!r})
            with locks.mutex({name!r}):
                pass
            def app(environ, start_response):
                with locks.slot_pool({name + "/pool"!r}, 2) as slot:
                    body = b"%d %d" % (os.getpid(), slot.number)
                start_response("200 OK", [("Content-Length", str(len(body)))])
                return [body]
            """
        )
    )
    socket = tmp_path / "socket"
    command = [sys.executable, "-m", "gunicorn", "--preload", "--workers=3", f"--bind=unix:{socket}", "app:app"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    try:
        pids = set()
        for _ in range(60):
            status, body = _get(socket, process)
            assert status == 200, body
            pids.add(body.split()[0])
        assert str(process.pid).encode() not in pids
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)


def _get(path, process):
    import http.client
    import socket

    while True:
        connection = http.client.HTTPConnection("localhost")
        connection.sock = socket.socket(socket.AF_UNIX)
        try:
            connection.sock.connect(str(path))
        except OSError:
            assert process.poll() is None, process.stderr.read()
            continue
        connection.request("GET", "/")
        answer = connection.getresponse()
        return answer.status, answer.read()


def test_the_log_is_pythons(local_url, name, python):
    code = """
import logging, sys, tenure
logging.basicConfig(level=logging.DEBUG, format="%(levelname)s %(name)s %(message)s", stream=sys.stdout)
locks = tenure.connect(sys.argv[1])
with locks.mutex(sys.argv[2]): pass
import time
time.sleep(0.5)
"""
    told = python(code, local_url, name).stdout
    assert "DEBUG tenure" in told and "granted" in told and name in told


@pytest.mark.long
def test_memory_stays_flat(python, tmp_path):
    code = """
import sys, tenure
def resident():
    with open("/proc/self/statm") as statm: return int(statm.read().split()[1]) * 4096
for url in ("memory:", "local:" + sys.argv[1]):
    locks = tenure.connect(url)
    mutex = locks.mutex("a")
    def pairs(count):
        for _ in range(count):
            with mutex: pass
    pairs(50_000)
    before = resident()
    pairs(1_000_000)
    grown = resident() - before
    assert grown < 5_000_000, (url, grown)
print("done")
"""
    assert python(code, tmp_path / "locks", timeout=1200).stdout == "done\n"


def test_memory_stays_flat_for_a_while(python, tmp_path):
    code = """
import asyncio, sys, tenure
def resident():
    with open("/proc/self/statm") as statm: return int(statm.read().split()[1]) * 4096
locks = tenure.connect("local:" + sys.argv[1])
mutex = locks.mutex("a")
async def tasks(count):
    for _ in range(count):
        async with mutex: pass
def pairs(count):
    for _ in range(count):
        with mutex: pass
    asyncio.run(tasks(count // 4))
pairs(4_000)
before = resident()
pairs(20_000)
grown = resident() - before
assert grown < 5_000_000, grown
print("done")
"""
    assert python(code, tmp_path / "locks", timeout=300).stdout == "done\n"
