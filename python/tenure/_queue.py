"""Queues: pushing, and working on items."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import threading
import time
from types import TracebackType
from typing import (
    Any,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Type,
    TypeVar,
    Union,
)

from . import _tenure as native
from ._errors import Lost, Unavailable
from ._process import Connector, Holding
from ._tenure import Stop
from ._wait import arun, run

#: How long a worker waits before it asks a silent store again, in seconds.
AGAIN = 1.0

B = TypeVar("B", bound="BaseDelivery")
_log = logging.getLogger("tenure.queue")


class Pushed(NamedTuple):
    """What became of a push."""

    item: int
    is_duplicate: bool


class QueueStats(NamedTuple):
    """How many items there are."""

    waiting: int
    in_flight: int
    dead: int
    #: Seconds until something can be taken. None: there is nothing.
    next_in: Optional[float]


class Item(NamedTuple):
    """An item as an operator sees it."""

    item: int
    group: Optional[str]
    payload: bytes
    context: Optional[str]
    attempts: int
    #: Seconds since it was pushed.
    age: float
    #: ``waiting``, ``behind`` another of its group, ``in_flight`` or ``dead``.
    state: str
    #: Why it is dead.
    reason: Optional[str]


class BaseDelivery(Holding):
    """An item that was handed out, and the lease on it."""

    __slots__ = ("_is_settled", "_item")

    def __init__(self, hold: native.Hold) -> None:
        super().__init__(hold)
        item = hold.item()
        assert item is not None
        self._item = item
        self._is_settled = False

    @property
    def item(self) -> int:
        """Its number."""
        return self._item[0]

    @property
    def payload(self) -> bytes:
        """What was pushed."""
        return self._item[1]

    @property
    def group(self) -> Optional[str]:
        """Its group."""
        return self._item[2]

    @property
    def context(self) -> Optional[str]:
        """What travels with it, a ``traceparent`` for instance."""
        return self._item[3]

    @property
    def attempt(self) -> int:
        """How often it has been handed out, this time included."""
        return self._item[4]

    @property
    def age(self) -> float:
        """For how many seconds it had been due."""
        return self._item[5]

    @property
    def token(self) -> int:
        """The fencing token: larger than those of the group's earlier deliveries."""
        return self._hold.parts[0][1]

    @property
    def claim(self) -> str:
        """The id of this delivery: 32 hexadecimal digits."""
        return self._hold.parts[0][2]

    def is_lost(self) -> bool:
        """Whether it is over: the item is or will be handed out again."""
        return self._hold.is_over()

    def check(self) -> None:
        """Raises :class:`Lost` once it is lost. A local look: it costs no round trip."""
        loss = self._hold.loss()
        if loss is not None:
            raise loss

    def detach(self) -> str:
        """Lets go of it, as text for another process, which attaches it within its ttl and ends it.

        :raises Lost: if it is lost.
        """
        detached = self._hold.detach()
        self._is_settled = True
        return detached

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.item} of {self._hold.parts[0][0]!r} attempt={self.attempt}>"

    def _settle(self, how: str, after: Optional[float] = None, why: str = "") -> native.Pending:
        self._is_settled = True
        return self._hold.settle(how, after, why)


class Delivery(BaseDelivery):
    """An item in the hands of a thread. ``with`` acknowledges it at the end, and retries it later on an exception."""

    __slots__ = ()

    def ack(self) -> None:
        """It is done; the next one of its group can be handed out.

        :raises Lost: if it came too late: the item is or will be handed out again.
        :raises Unavailable: if nobody knows whether it is done.
        """
        run(self._settle("ack"))

    def retry(self, after: Optional[float] = None, why: str = "") -> bool:
        """Has it handed out again, ``after`` seconds: by default a second after the first attempt, twice that after each, at most 300.

        Its group waits meanwhile. Whether it has become a dead letter instead.
        """
        return bool(run(self._settle("retry", after, why)))

    def fail(self, reason: str) -> None:
        """Makes it a dead letter."""
        run(self._settle("fail", None, reason))

    def put_back(self) -> None:
        """Has it handed out again at once, as if this had not happened."""
        run(self._settle("put_back"))

    def __enter__(self: B) -> B:
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        exc: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        if self._is_settled:
            return
        if exc is None:
            self.ack()
        elif isinstance(exc, Exception):
            with contextlib.suppress(Lost, Unavailable):
                self.retry(why=_reason(exc))
        else:
            # Ctrl-C: nobody waits here.
            self._hold.let_go()


class AsyncDelivery(BaseDelivery):
    """As :class:`Delivery`, with coroutines."""

    __slots__ = ()

    async def ack(self) -> None:
        """As :meth:`Delivery.ack`."""
        await arun(self._settle("ack"))

    async def retry(self, after: Optional[float] = None, why: str = "") -> bool:
        """As :meth:`Delivery.retry`."""
        return bool(await arun(self._settle("retry", after, why)))

    async def fail(self, reason: str) -> None:
        """As :meth:`Delivery.fail`."""
        await arun(self._settle("fail", None, reason))

    async def put_back(self) -> None:
        """As :meth:`Delivery.put_back`."""
        await arun(self._settle("put_back"))

    async def __aenter__(self: B) -> B:
        return self

    async def __aexit__(
        self,
        kind: Optional[Type[BaseException]],
        exc: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        if self._is_settled:
            return
        if exc is None:
            await self.ack()
        elif isinstance(exc, Exception):
            with contextlib.suppress(Lost, Unavailable):
                await self.retry(why=_reason(exc))
        else:
            self._hold.let_go()


def _reason(exc: BaseException) -> str:
    return f"{type(exc).__name__}: {exc}"[:1000]


class Items:
    """Items one after the other, for ``for`` and ``async for``. See :meth:`Queue.items`."""

    def __init__(self, queue: Queue, wait: Optional[float], stop: Optional[Stop]) -> None:
        self._queue = queue
        self._wait = wait
        self._stop = stop

    def __iter__(self) -> Iterator[Delivery]:
        return _Iteration(self)

    def __aiter__(self) -> AsyncIterator[AsyncDelivery]:
        return _AsyncIteration(self)

    def _is_stopped(self) -> bool:
        return self._stop is not None and self._stop.is_set()


class _Iteration:
    """Only the loop refers to it, so that leaving the loop drops it. The item may live on as a variable: it is let go of."""

    def __init__(self, items: Items) -> None:
        self._items = items
        self._delivery: Optional[Delivery] = None

    def __del__(self) -> None:
        _drop(self._delivery)

    def __iter__(self) -> Iterator[Delivery]:
        return self

    def __next__(self) -> Delivery:
        delivery, self._delivery = self._delivery, None
        if delivery is not None and not delivery._is_settled:
            try:
                delivery.ack()
            except (Lost, Unavailable) as error:
                _log.warning("the item %d may be handed out again: %s", delivery.item, error)
        del delivery
        items = self._items
        while not items._is_stopped():
            try:
                taken = items._queue._take(items._wait, items._stop)
            except Unavailable as error:
                _log.warning("asks again in %s s: %s", AGAIN, error)
                time.sleep(AGAIN)
                continue
            if taken is None:
                break
            self._delivery = taken
            return taken
        raise StopIteration


def _drop(delivery: Optional[BaseDelivery]) -> None:
    """The loop was left: the item is retried."""
    if delivery is not None and not delivery._is_settled:
        delivery._is_settled = True
        delivery._hold.let_go()


class _AsyncIteration:
    """As :class:`_Iteration`."""

    def __init__(self, items: Items) -> None:
        self._items = items
        self._delivery: Optional[AsyncDelivery] = None

    def __del__(self) -> None:
        _drop(self._delivery)

    def __aiter__(self) -> AsyncIterator[AsyncDelivery]:
        return self

    async def __anext__(self) -> AsyncDelivery:
        delivery, self._delivery = self._delivery, None
        if delivery is not None and not delivery._is_settled:
            try:
                await delivery.ack()
            except (Lost, Unavailable) as error:
                _log.warning("the item %d may be handed out again: %s", delivery.item, error)
        del delivery
        items = self._items
        while not items._is_stopped():
            try:
                taken = await items._queue._atake(items._wait, items._stop)
            except Unavailable as error:
                _log.warning("asks again in %s s: %s", AGAIN, error)
                await asyncio.sleep(AGAIN)
                continue
            if taken is None:
                break
            self._delivery = taken
            return taken
        raise StopAsyncIteration


class Queue:
    """Work in line: in order within each group, with a lease on each item that is handed out."""

    def __init__(self, connector: Connector, name: str, orders: native.Orders) -> None:
        self._connector = connector
        self._name = name
        self._orders = orders

    @property
    def aio(self) -> AsyncQueue:
        """The same for tasks."""
        return AsyncQueue(self)

    def push(
        self,
        payload: Union[bytes, str],
        *,
        group: Optional[str] = None,
        delay: Optional[float] = None,
        dedup: Optional[str] = None,
        context: Optional[str] = None,
    ) -> Pushed:
        """Puts an item of up to 256 KiB in line.

        :param group: its items are handed out one at a time, in order.
        :param delay: for how many seconds it is held back, and its group with it.
        :param dedup: an id under which it is pushed only once.
        :param context: up to 128 characters that travel with it.
        :raises Unavailable: if nobody knows whether it is in line: push it again under the same ``dedup``.
        """
        return Pushed(*run(self._push(self._connector.client(), payload, group, delay, dedup, context)))

    def _push(self, client: native.Client, payload: Union[bytes, str], *given: Any) -> native.Pending:
        group, delay, dedup, context = given
        data = payload.encode() if isinstance(payload, str) else payload
        return client.push(self._name, data, group=group, delay=delay, dedup=dedup, context=context)

    def next(self, wait: Optional[float] = None) -> Optional[Delivery]:
        """Takes an item. None if none came within ``wait`` seconds; without it, it waits for ever; 0 does not wait."""
        return self._take(wait, None)

    def _take(self, wait: Optional[float], stop: Optional[Stop]) -> Optional[Delivery]:
        hold = run(self._connector.client().take(self._name, self._orders, wait, stop))
        return None if hold is None else Delivery(hold)

    async def _atake(self, wait: Optional[float], stop: Optional[Stop]) -> Optional[AsyncDelivery]:
        client = await self._connector.aclient()
        hold = await arun(client.take(self._name, self._orders, wait, stop))
        return None if hold is None else AsyncDelivery(hold)

    def items(self, *, wait: Optional[float] = None, stop: Optional[Stop] = None) -> Items:
        """Items one after the other, for ``for`` and ``async for``: each is acknowledged when its body has ended, and retried if the
        loop is left before: by an exception, or by ``break`` (then call ``item.ack()`` first, if it is done).

        Call it in the ``for`` statement: where somebody else keeps the iterator, ``with item:`` in the body says the same more plainly.
        It goes on while the store is away.

        :param wait: ends when no item comes for so many seconds; 0: when there is none.
        :param stop: ends it when the item in hand is done; see :func:`stop_on_signals`.
        """
        return Items(self, wait, stop)

    def serve(
        self, work: Callable[[Delivery], object], *, parallel: int = 1, stop: Optional[Stop] = None
    ) -> None:
        """Has ``work`` called with each item, in ``parallel`` threads, until it is told to stop. An exception retries its item."""
        stop = Stop() if stop is None else stop

        def lane() -> None:
            for item in self.items(stop=stop):
                try:
                    with item:
                        work(item)
                except Exception:
                    _log.exception("the item %d is retried", item.item)

        lanes = [threading.Thread(target=lane, name=f"tenure-{self._name}-{at}") for at in range(1, parallel)]
        for thread in lanes:
            thread.start()
        try:
            lane()
        finally:
            stop.set()
            for thread in lanes:
                thread.join()

    def attach(self, detached: str) -> Optional[Delivery]:
        """Makes a delivery of what was detached. None: it is or will be handed out again, or is done."""
        hold = run(self._connector.client().attach_item(self._name, self._orders, detached))
        return None if hold is None else Delivery(hold)

    def stats(self) -> QueueStats:
        """How many items there are."""
        return QueueStats(*run(self._connector.client().queue(self._name, "stats")))

    def peek(self, most: int = 100, after: Optional[int] = None) -> List[Item]:
        """Up to ``most`` items that wait or are worked on, those after the number ``after``."""
        return [Item(*item) for item in run(self._connector.client().queue_items(self._name, False, after, most))]

    def dead_letters(self, most: int = 100, after: Optional[int] = None) -> List[Item]:
        """Up to ``most`` dead letters."""
        return [Item(*item) for item in run(self._connector.client().queue_items(self._name, True, after, most))]

    def replay(self, item: Optional[int] = None) -> int:
        """Puts dead letters in line again: one, or all. How many."""
        return int(run(self._connector.client().queue(self._name, "replay", item))[0])

    def purge(self, item: Optional[int] = None) -> int:
        """Removes what waits: one, or all. How many."""
        return int(run(self._connector.client().queue(self._name, "purge", item))[0])

    def purge_dead(self, item: Optional[int] = None) -> int:
        """Removes dead letters: one, or all. How many."""
        return int(run(self._connector.client().queue(self._name, "purge_dead", item))[0])


class AsyncQueue:
    """The verbs of a :class:`Queue` as coroutines."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    async def push(
        self,
        payload: Union[bytes, str],
        *,
        group: Optional[str] = None,
        delay: Optional[float] = None,
        dedup: Optional[str] = None,
        context: Optional[str] = None,
    ) -> Pushed:
        """As :meth:`Queue.push`."""
        client = await self._queue._connector.aclient()
        return Pushed(*await arun(self._queue._push(client, payload, group, delay, dedup, context)))

    async def next(self, wait: Optional[float] = None) -> Optional[AsyncDelivery]:
        """As :meth:`Queue.next`. Cancelling the task takes nothing."""
        return await self._queue._atake(wait, None)

    def items(self, *, wait: Optional[float] = None, stop: Optional[Stop] = None) -> Items:
        """As :meth:`Queue.items`."""
        return Items(self._queue, wait, stop)

    async def serve(
        self,
        work: Callable[[AsyncDelivery], Awaitable[object]],
        *,
        parallel: int = 1,
        stop: Optional[Stop] = None,
    ) -> None:
        """As :meth:`Queue.serve`, in ``parallel`` tasks."""
        stop = Stop() if stop is None else stop

        async def lane() -> None:
            async for item in self.items(stop=stop):
                try:
                    async with item:
                        await work(item)
                except Exception:
                    _log.exception("the item %d is retried", item.item)

        try:
            await asyncio.gather(*(lane() for _ in range(parallel)))
        finally:
            stop.set()

    async def attach(self, detached: str) -> Optional[AsyncDelivery]:
        """As :meth:`Queue.attach`."""
        client = await self._queue._connector.aclient()
        hold = await arun(client.attach_item(self._queue._name, self._queue._orders, detached))
        return None if hold is None else AsyncDelivery(hold)

    async def stats(self) -> QueueStats:
        """As :meth:`Queue.stats`."""
        client = await self._queue._connector.aclient()
        return QueueStats(*await arun(client.queue(self._queue._name, "stats")))


@contextlib.contextmanager
def stop_on_signals(*signals: int) -> Iterator[Stop]:
    """Sets a :class:`Stop` on SIGTERM and SIGINT, or on these, until the end of the block. Only in the main thread."""
    stop = Stop()
    wanted = signals or (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in wanted}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
