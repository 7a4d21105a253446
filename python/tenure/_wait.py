"""How a thread, a greenlet or a task waits for the store.

Whoever is woken reads a file descriptor: no other thread runs Python, so that a C call which keeps the interpreter's
lock holds up no renewal.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import weakref
from typing import Any, Callable, Dict, Optional

from ._tenure import Pending, Wakes

_MAIN = threading.main_thread
#: What threads wait for.
_blocked: Dict[int, Pending] = {}


def run(pending: Pending) -> Any:
    """Waits for the answer: as a thread, or as a greenlet where gevent has patched this program."""
    hub = patched_hub()
    if hub is not None:
        return _run_in_hub(hub, pending)
    is_main = threading.current_thread() is _MAIN()
    try:
        _blocked[id(pending)] = pending
        return pending.block(is_main)
    finally:
        _blocked.pop(id(pending), None)


def withdraw() -> None:
    """At the end of the program, which ends its threads where they wait: nobody is to be granted anything any more."""
    for pending in list(_blocked.values()):
        pending.cancel()


def patched_hub() -> Optional[Any]:
    """gevent's hub, where it has patched this program."""
    monkey = sys.modules.get("gevent.monkey")
    if monkey is None or not monkey.is_module_patched("socket"):
        return None
    import gevent  # type: ignore[import-untyped,unused-ignore]

    return gevent.get_hub()


def _run_in_hub(hub: Any, pending: Pending) -> Any:
    wakes = Wakes()
    readable = hub.loop.io(wakes.fileno(), 1)
    try:
        while not pending.poll(wakes, 0):
            hub.wait(readable)
            wakes.drain()
        return pending.take()
    finally:
        readable.close()
        pending.cancel()


class Loop:
    """What of an event loop's tasks waits for the store."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.wakes = Wakes()
        self._waiting: Dict[int, Callable[[], None]] = {}
        self._last = 0
        loop.add_reader(self.wakes.fileno(), self._wake)

    def _wake(self) -> None:
        for key in self.wakes.drain():
            waiting = self._waiting.get(key)
            if waiting is not None:
                waiting()

    def add(self, woken: Callable[[], None]) -> int:
        self._last += 1
        self._waiting[self._last] = woken
        return self._last

    def remove(self, key: int) -> None:
        self._waiting.pop(key, None)


# Weak on both sides: the reader keeps it for as long as its loop is open, and what waits refers to the loop.
_loops: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, weakref.ref[Loop]]" = weakref.WeakKeyDictionary()


def of_running_loop() -> Loop:
    loop = asyncio.get_running_loop()
    kept = _loops.get(loop)
    known = None if kept is None else kept()
    if known is None:
        known = Loop(loop)
        _loops[loop] = weakref.ref(known)
    return known


def forget_loops() -> None:
    """In a forked child: the parent's loops and threads are not the child's."""
    _loops.clear()
    _blocked.clear()


async def arun(pending: Pending) -> Any:
    """Waits for the answer as a task. Cancelling the task withdraws what it waits for."""
    loop = of_running_loop()
    woken: "asyncio.Future[None]"

    def wake() -> None:
        if not woken.done():
            woken.set_result(None)

    key = loop.add(wake)
    try:
        while True:
            woken = asyncio.get_running_loop().create_future()
            if pending.poll(loop.wakes, key):
                return pending.take()
            await woken
    finally:
        loop.remove(key)
        pending.cancel()


class Watch:
    """Cancels a task once something is lost, as ``asyncio.timeout`` does once its time is over."""

    def __init__(self, lost: Pending) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a lease is held with `async with` inside a task")
        self._task: "asyncio.Task[Any]" = task
        self._lost = lost
        self._loop = of_running_loop()
        self.has_cancelled = False
        self._cancelling = 0
        if sys.version_info >= (3, 11):
            self._cancelling = task.cancelling()
        self._key = self._loop.add(self._look)
        self._look()

    def _look(self) -> None:
        # None of one that was released: that cancels nothing.
        if self._lost.poll(self._loop.wakes, self._key) and self._lost.take():
            self.has_cancelled = True
            self._task.cancel()

    def stop(self) -> bool:
        """Ends it. Whether the task's present cancellation is this one's alone."""
        self._loop.remove(self._key)
        self._lost.cancel()
        if not self.has_cancelled:
            return False
        if sys.version_info >= (3, 11):
            return self._task.uncancel() <= self._cancelling
        return True
