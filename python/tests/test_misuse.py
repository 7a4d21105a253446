"""What users do wrong, or have done to them: nothing is granted twice, leaked, or crashes."""

import asyncio
import contextlib
import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
import time

import pytest

import tenure


def _is_free(locks, name):
    """Waits until nothing of a name is held or waited for. The tests' ttl is a minute: nothing ends by itself."""
    with contextlib.closing(locks):
        return locks.mutex(name, wait=20).acquire().release()


def test_a_generator_that_is_never_finished_lets_go(url, name):
    locks, other = tenure.connect(url), tenure.connect(url)

    def work():
        with locks.mutex(name, ttl=60):
            yield

    generator = work()
    next(generator)
    assert other.mutex(name).try_acquire() is None
    del generator
    gc.collect()
    assert _is_free(other, name)
    locks.close()


def test_another_thread_ends_the_block_of_a_generator(local_url, name):
    """As a dependency of a web framework does. Its own lease of the same lock stays."""
    locks, other = tenure.connect(local_url), tenure.connect(local_url)
    two = locks.semaphore(name, 2, ttl=60)

    def work():
        with two as lease:
            yield lease

    generator = work()
    theirs = next(generator)

    def thread():
        with two as own:
            with contextlib.suppress(StopIteration):
                next(generator)
            ended.append((theirs.is_lost(), own.is_lost()))

    ended = []
    one = threading.Thread(target=thread)
    one.start()
    one.join(20)
    assert ended == [(True, False)] and two._entered == []
    with other.semaphore(name, 2, weight=2, wait=20):
        pass
    locks.close()
    other.close()


def test_blocks_of_one_thread_end_in_any_order(local_url, name):
    locks = tenure.connect(local_url)
    two = locks.semaphore(name, 2, ttl=60)

    def work():
        with two as lease:
            yield lease

    first, second = work(), work()
    one, other = next(first), next(second)
    first.close()
    assert one.is_lost() and not other.is_lost()
    second.close()
    assert other.is_lost() and two._entered == []
    with contextlib.ExitStack() as stack:
        lease = stack.enter_context(two)
    assert lease.is_lost() and two._entered == []
    locks.close()


def test_the_loop_ends_the_block_of_an_asynchronous_generator(url, name):
    locks, other = tenure.connect(url), tenure.connect(url)

    async def main():
        async def work():
            async with mutex:
                yield

        mutex = locks.mutex(name, ttl=60)
        generator = work()
        await generator.__anext__()
        # The loop finalises it in a task of its own.
        del generator
        gc.collect()
        while mutex._entered:
            await asyncio.sleep(0)
        async with contextlib.AsyncExitStack() as stack:
            lease = await stack.enter_async_context(mutex)
        assert lease.is_lost() and mutex._entered == []

    asyncio.run(main())
    assert _is_free(other, name)
    locks.close()


def test_another_thread_releases(url, name):
    locks, other = tenure.connect(url), tenure.connect(url)
    lease, released = locks.mutex(name, ttl=60).acquire(), []
    watching = threading.Thread(target=lambda: released.append(lease.lost()))
    watching.start()
    thread = threading.Thread(target=lambda: released.append(lease.release()))
    thread.start()
    thread.join(20)
    watching.join(20)
    assert sorted(map(str, released)) == ["None", "True"]
    assert _is_free(other, name)
    locks.close()


def test_a_wait_that_ends_as_the_grant_comes_holds_nothing(url, name):
    """`asyncio.wait_for` ends at every moment around that of the grant."""
    locks, other = tenure.connect(url), tenure.connect(url)

    async def main():
        took, got = 0.002, 0
        for at in range(60):
            lease = await locks.mutex(name, ttl=60).aio.acquire(wait=20)
            began = time.monotonic()
            waiting = asyncio.ensure_future(
                asyncio.wait_for(other.mutex(name, ttl=60).aio.acquire(), took * (0.5 + at / 60))
            )
            await asyncio.sleep(0)
            await lease.release()
            try:
                held = await waiting
                got += 1
                # So long it took, this time.
                took = max(time.monotonic() - began, 0.0002)
                await held.release()
            except asyncio.TimeoutError:
                took *= 1.2
        return got

    asyncio.run(main())
    gc.collect()
    assert _is_free(other, name)
    locks.close()


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_a_handler_that_raises_at_any_moment_leaves_nothing_held(local_url, name):
    """As Celery's soft time limit does: between two lines of ours, too."""
    locks, other = tenure.connect(local_url), tenure.connect(local_url)

    class Told(Exception):
        pass

    def tell(*_):
        raise Told

    locks.mutex(name).acquire().release()
    before, told, entered = signal.signal(signal.SIGALRM, tell), 0, 0
    try:
        for at in range(400):
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.00002 + at % 40 * 0.00001)
                for _ in range(10_000):
                    with locks.mutex(name, ttl=60):
                        entered += 1
            except Told:
                told += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert told == 400 and entered
    gc.collect()
    assert _is_free(other, name)
    locks.close()


def test_locks_and_errors_are_pickled_and_leases_are_not(shared_url, name):
    locks = tenure.connect(shared_url, label="parent")
    with locks.mutex(name, ttl=5, label="night") as lease:
        for lock in (
            locks,
            locks.mutex(name, ttl=5),
            locks.semaphore(name, 3, weight=2),
            locks.rw_lock(name).write,
            locks.all(locks.mutex(name), locks.slot_pool(name + "/b", 2)),
            locks.election(name, ttl=5),
            locks.queue(name, interval=1.5, max_attempts=3),
        ):
            assert type(pickle.loads(pickle.dumps(lock))) is type(lock)
        again = pickle.loads(pickle.dumps(locks.mutex(name, ttl=5, wait=0)))
        with pytest.raises(tenure.Timeout) as timeout:
            again.acquire()
        told = pickle.loads(pickle.dumps(timeout.value))
        assert type(told) is tenure.Timeout and told.holder == timeout.value.holder and "night" in told.holder
        with pytest.raises(TypeError, match="detach"):
            pickle.dumps(lease)
    assert again.acquire().release()
    stale = pickle.loads(pickle.dumps(tenure.Stale("late", max=7, hint="stop")))
    assert stale.max == 7 and stale.hint == "stop"
    locks.close()


def test_a_spawned_process_is_given_a_lock(shared_url, name, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        """
import multiprocessing, sys, tenure
def work(lock):
    assert lock.try_acquire() is None
    return lock.acquire(wait=20).release()
if __name__ == "__main__":
    locks = tenure.connect(sys.argv[1])
    mutex = locks.mutex(sys.argv[2], ttl=60)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        with mutex:
            done = pool.apply_async(work, (mutex,))
            while not locks.view(sys.argv[2]).waiting:
                assert not done.ready(), done.get()
        assert done.get(20) is True
    print("done")
"""
    )
    done = subprocess.run(
        [sys.executable, str(program), shared_url, name], capture_output=True, text=True, timeout=120
    )
    assert done.stdout == "done\n", done.stderr


def test_a_subinterpreter_is_refused_and_not_crashed(python):
    code = """
try: import _interpreters as interpreters
except ImportError:
    try: import _xxsubinterpreters as interpreters
    except ImportError: print("done"); raise SystemExit
import tenure
one = interpreters.create()
text = "\\n".join(("try:", "    import tenure", "except ImportError as error:", "    assert 'interpreter' in str(error), error", "else:", "    raise SystemExit('it was imported')"))
assert interpreters.run_string(one, text) is None
tenure.connect("memory:").mutex("a").acquire().release()
print("done")
"""
    assert python(code).stdout == "done\n"


def test_an_end_without_an_end(shared_url, local_url, name, python):
    """`os._exit` releases nothing: `local:` sees the death, and elsewhere the hold ends with its ttl. No sooner."""
    code = """
import os, sys, tenure
lease = tenure.connect(sys.argv[1]).mutex(sys.argv[2], ttl=3).acquire()
print(lease.token, flush=True)
os._exit(0)
"""
    for url in (local_url, shared_url):
        began = time.monotonic()
        token = int(python(code, url, name).stdout)
        locks = tenure.connect(url)
        later = locks.mutex(name).acquire(wait=60)
        assert later.token > token
        if url != local_url:
            # From before its start to our grant: its ttl lies in between.
            assert time.monotonic() - began >= 2.9
        later.release()
        locks.close()


@pytest.mark.parametrize("work", ["pairs", "refused", "tries", "fences", "tasks"])
def test_threads_are_ended_wherever_they_are(local_url, name, python, tmp_path, work):
    """A program ends while its daemon threads are in the middle of everything."""
    code = """
import asyncio, sys, threading, tenure
locks, name, began = tenure.connect(sys.argv[1]), sys.argv[2], threading.Barrier(5)
kept, fence = locks.mutex(name).acquire(), tenure.fence.File(sys.argv[3])
def pairs(own):
    with own: pass
def refused(own):
    try: locks.mutex(name, wait=0).acquire()
    except tenure.Timeout: pass
def tries(own): assert locks.mutex(name).try_acquire() is None
def fences(own): fence.check("a", kept)
async def turns(own):
    for _ in range(20):
        async with own: pass
def tasks(own): asyncio.run(turns(own))
def work(at):
    own, does = locks.mutex(f"{name}/{at}"), globals()[sys.argv[4]]
    does(own); began.wait()
    while True: does(own)
for at in range(4): threading.Thread(target=work, args=(at,), daemon=True).start()
began.wait()
print("done")
"""
    for _ in range(2):
        done = python(code, local_url, name, tmp_path / "fence", work, options=["-X", "dev"])
        assert done.stdout == "done\n" and done.stderr == ""


def test_a_closed_client_ends_what_it_held(shared_url, name):
    locks, other = tenure.connect(shared_url), tenure.connect(shared_url)
    lease = locks.mutex(name, ttl=60).acquire()
    locks.close()
    with contextlib.suppress(tenure.Error):
        lease.release()
    del lease
    # The next use connects anew.
    assert locks.mutex(name + "/b").acquire().release()
    assert other.view(name) is None or not other.view(name).waiting
    locks.close()
    other.close()


def test_loops_that_come_and_go_leave_no_descriptor(local_url, name):
    locks = tenure.connect(local_url)

    async def main():
        async with locks.mutex(name):
            pass

    def turns():
        for _ in range(50):
            asyncio.run(main())
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    assert turns() >= turns()
    locks.close()
