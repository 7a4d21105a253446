"""asyncio: on every kind of store, and what cancelling, losing and ending loops do."""

import asyncio
import ctypes
import gc
import threading

import pytest

import tenure


def test_the_same_names_for_tasks(url, name):
    async def main():
        locks = tenure.connect(url)
        other = tenure.connect(url)
        async with locks.mutex(name) as lease:
            assert lease.token and await other.mutex(name).aio.try_acquire() is None
            with pytest.raises(tenure.Timeout):
                await other.mutex(name).aio.acquire(wait=1)
        async with locks.slot_pool(name + "/slots", 2) as slot:
            assert slot.number in (0, 1)
        async with locks.all(locks.mutex(name + "/a"), locks.mutex(name + "/b")) as leases:
            assert len(leases) == 2
        async with locks.election(name + "/lead") as term:
            await term.publish(b"here")
            assert (await other.election(name + "/lead").aio.leader()).value == b"here"
        queue = locks.queue(name + "/q")
        await queue.aio.push("a")
        await queue.aio.push("b")
        assert [item.payload async for item in queue.items(wait=0)] == [b"a", b"b"]
        assert (await queue.aio.stats()).waiting == 0

        async def load():
            await asyncio.sleep(0)
            return b"1"

        assert (await locks.single_flight(name).aio.get(load)).source == "loaded"
        assert await locks.aio.view(name + "/nothing") is None
        assert await locks.aio.doctor()
        await locks.aio.close()
        await other.aio.close()

    asyncio.run(main())


def test_tasks_take_turns(url, name):
    async def main():
        locks, inside, seen = tenure.connect(url), [], []

        async def work():
            async with locks.mutex(name):
                inside.append(1)
                await asyncio.sleep(0)
                seen.append(len(inside))
                inside.pop()

        await asyncio.gather(*(work() for _ in range(30)))
        assert seen == [1] * 30
        await locks.aio.close()

    asyncio.run(main())


def test_cancelling_a_task_withdraws_its_claim(url, name):
    async def main():
        locks, other = tenure.connect(url), tenure.connect(url)
        async with locks.mutex(name):
            waiting = asyncio.ensure_future(other.mutex(name).aio.acquire())
            while not (await locks.aio.view(name)).waiting:
                await asyncio.sleep(0.01)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            while (await locks.aio.view(name)).waiting:
                await asyncio.sleep(0.01)
        assert await locks.mutex(name).aio.acquire(wait=10)

    asyncio.run(main())


def test_a_loss_cancels_the_block_and_raises_lost(local_url, name):
    async def main():
        locks = tenure.connect(local_url)
        cleaned = False
        with pytest.raises(tenure.Lost) as lost:
            async with locks.mutex(name, max_hold=0.3):
                try:
                    await asyncio.sleep(60)
                finally:
                    cleaned = True
        assert cleaned and lost.value.reason and isinstance(lost.value.__cause__, asyncio.CancelledError)
        # Nothing of it is left: the task goes on.
        await asyncio.sleep(0)
        if hasattr(asyncio.current_task(), "cancelling"):
            assert asyncio.current_task().cancelling() == 0

    asyncio.run(main())


def test_a_cancellation_from_outside_is_no_loss(local_url, name):
    async def main():
        locks = tenure.connect(local_url)
        entered = asyncio.Event()

        async def work():
            async with locks.mutex(name):
                entered.set()
                await asyncio.sleep(60)

        task = asyncio.ensure_future(work())
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        # It was let go of.
        assert await locks.mutex(name).aio.acquire(wait=10)

    asyncio.run(main())


def test_a_release_inside_the_block_cancels_nothing(local_url, name):
    async def main():
        locks = tenure.connect(local_url)
        async with locks.mutex(name) as lease:
            assert await lease.release() is True
            await asyncio.sleep(0.05)
        async with locks.mutex(name) as lease:
            lost = asyncio.ensure_future(lease.lost())
            await asyncio.sleep(0.05)
        assert await lost is None

    asyncio.run(main())


def test_a_loop_that_ends_leaves_nothing_behind(url, name):
    locks = tenure.connect(url)
    holder = locks.mutex(name).acquire()
    for _ in range(3):

        async def main():
            # Still under way when the loop ends.
            asyncio.ensure_future(locks.mutex(name).aio.acquire())
            await asyncio.sleep(0.02)

        loop = asyncio.new_event_loop()
        loop.run_until_complete(main())
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.close()
    # One that is not even cancelled: its loop is gone when it is woken.
    loop = asyncio.new_event_loop()
    future = locks.mutex(name).aio.acquire()
    coroutine = asyncio.wait_for(future, 60)
    task = loop.create_task(coroutine)
    loop.run_until_complete(asyncio.sleep(0.05))
    loop.close()
    holder.release()
    task._log_destroy_pending = False
    del task, coroutine, future, loop
    gc.collect()
    assert locks.mutex(name).acquire(wait=20).release()
    locks.close()


def test_ten_thousand_cancelled_tasks(python, tmp_path):
    """In development mode: what is wrong with memory, threads or warnings ends the program."""
    code = """
import asyncio, faulthandler, sys, tenure
faulthandler.enable()
async def main():
    locks = tenure.connect("local:" + sys.argv[1])
    async with locks.mutex("a"):
        for _ in range(20):
            tasks = [asyncio.ensure_future(locks.mutex("a").aio.acquire()) for _ in range(500)]
            await asyncio.sleep(0)
            for task in tasks: task.cancel()
            done = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(one, asyncio.CancelledError) for one in done), done[:3]
    async with locks.mutex("a", wait=20): pass
asyncio.run(main(), debug=False)
print("done")
"""
    done = python(code, tmp_path / "locks", options=["-X", "dev", "-W", "error"], timeout=120)
    assert done.stdout == "done\n" and done.stderr == ""


def test_a_call_that_keeps_the_interpreter_loses_nothing(urls, name):
    """Renewals need no interpreter: 5 s in C under a ttl of 3 s, whoever waits meanwhile. Two leases in each store, of a thread and of a task."""

    async def main():
        held = []
        for url in urls:
            locks, other = tenure.connect(url), tenure.connect(url)
            lease = await locks.mutex(name, ttl=3).aio.acquire()
            waiting = asyncio.ensure_future(other.mutex(name).aio.acquire())
            lost = asyncio.ensure_future(lease.lost())
            held.append((locks, other, lease, locks.mutex(name + "/thread", ttl=3).acquire(), waiting, lost))
        await asyncio.sleep(0.2)
        # It keeps the interpreter's lock.
        ctypes.PyDLL(None).sleep(5)
        for locks, other, lease, of_thread, waiting, lost in held:
            for one in (lease, of_thread):
                one.check()
                assert one.expires_in() > 0.5
            lost.cancel()
            await lease.release()
            (await waiting).check()
            of_thread.release()
            await locks.aio.close()
            await other.aio.close()

    asyncio.run(main())


def test_threads_with_a_loop_each(local_url, name):
    locks, counts = tenure.connect(local_url), []

    def thread():
        async def main():
            for _ in range(20):
                async with locks.mutex(name):
                    counts.append(len(counts))

        asyncio.run(main())

    threads = [threading.Thread(target=thread) for _ in range(4)]
    [one.start() for one in threads]
    [one.join(60) for one in threads]
    assert counts == list(range(80))
