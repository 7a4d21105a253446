"""Queues, on every kind of store."""

import os
import signal
import threading

import pytest

import tenure


def test_items_come_in_order_and_are_acknowledged_at_the_end_of_the_body(locks, name):
    queue = locks.queue(name)
    for number in range(3):
        queue.push(f"order {number}", group="bakery")
    got = [(item.payload, item.group, item.attempt) for item in queue.items(wait=0)]
    assert got == [(b"order %d" % number, "bakery", 1) for number in range(3)]
    assert queue.stats()[:3] == (0, 0, 0)


def test_an_exception_in_the_body_retries_the_item(locks, name):
    queue = locks.queue(name)
    queue.push("a")
    with pytest.raises(KeyError):
        for _ in queue.items(wait=0):
            raise KeyError("no")
    (item,) = _until(lambda: [item for item in queue.peek() if item.state == "waiting"])
    assert item.attempts == 1
    taken = queue.next(wait=20)
    assert taken.attempt == 2
    with taken:
        pass
    assert queue.next(wait=0) is None


def test_an_exception_is_the_reason_of_a_dead_letter(locks, name):
    queue = locks.queue(name, max_attempts=1)
    queue.push("a", context="trace")
    with pytest.raises(ValueError):
        with queue.next(wait=10) as item:
            assert item.context == "trace" and item.age >= 0 and item.token
            raise ValueError("bad order")
    (dead,) = queue.dead_letters()
    assert dead.reason == "ValueError: bad order" and dead.payload == b"a"
    assert queue.replay() == 1
    queue.next(wait=10).fail("by hand")
    assert queue.purge_dead() == 1


def test_a_push_is_repeated_under_its_id(locks, name):
    queue = locks.queue(name)
    first, second = queue.push("a", dedup="order 7"), queue.push("a", dedup="order 7")
    assert not first.is_duplicate and second.is_duplicate and first.item == second.item
    queue.next(wait=10).put_back()
    assert queue.next(wait=10).ack() is None
    assert queue.next(wait=0) is None


def test_an_item_goes_on_in_another_process(shared_url, name):
    locks, other = tenure.connect(shared_url), tenure.connect(shared_url)
    locks.queue(name).push("a")
    detached = locks.queue(name).next(wait=10).detach()
    item = other.queue(name).attach(detached)
    assert item.payload == b"a"
    item.ack()
    assert other.queue(name).attach(detached) is None
    locks.close()
    other.close()


def test_a_worker_stops_after_the_item_in_hand(locks, name):
    queue, stop, done = locks.queue(name), tenure.Stop(), []
    for number in range(4):
        queue.push(str(number))

    def work(item):
        if item.payload == b"1":
            raise ValueError("later")
        done.append(item.payload)
        if len(done) == 3:
            stop.set()

    queue.serve(work, parallel=2, stop=stop)
    assert sorted(done) == [b"0", b"2", b"3"]


def test_a_waiting_worker_stops_at_a_signal(locks, name):
    queue = locks.queue(name)
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
    with tenure.stop_on_signals() as stop:
        assert list(queue.items(stop=stop)) == []
        assert stop.is_set()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def _until(condition):
    while True:
        found = condition()
        if found:
            return found
