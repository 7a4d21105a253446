"""Locks by name, and what is taken of them."""

from __future__ import annotations

import asyncio
import functools
import inspect
import sys
import threading
from types import TracebackType
from typing import Any, Awaitable, Callable, Coroutine, Dict, Generic, List, Optional, Sequence, Tuple, Type, TypeVar

from . import _tenure as native
from ._leases import AsyncLease, AsyncLeases, AsyncTerm, Lease, Leases, Term
from ._process import Connector
from ._wait import arun, run

S = TypeVar("S", bound=Lease)
A = TypeVar("A", bound=AsyncLease)
F = TypeVar("F", bound=Callable[..., Any])


class Lockable(Generic[S, A]):
    """What is taken and released. The same object serves threads (``with``) and tasks (``async with``), many at a time."""

    _sync: Type[S]
    _async: Type[A]

    def __init__(self, connector: Connector, wait: Optional[float]) -> None:
        self._connector = connector
        self._wait = wait
        # The block, the thread or task, and the lease of each that is inside. Each use is one operation, so that threads need no lock.
        self._entered: List[Tuple[int, int, Any]] = []

    def _ask(self, client: native.Client, waits: bool, wait: Optional[float]) -> native.Pending:
        raise NotImplementedError

    def _ask_here(self, client: native.Client) -> Optional[native.Hold]:
        return None

    def acquire(self, wait: Optional[float] = None) -> S:
        """Takes it, and waits for up to ``wait`` seconds: by default for as long as it was made with, else for ever.

        Other threads run meanwhile, and a signal (Ctrl-C) ends the wait.

        :raises Timeout: if the wait was over first; ``holder`` says who has it, where the engine told.
        :raises Unavailable: if the store is silent for so long that the place in the queue is gone.
        :raises Conflict: if the name is in use with another kind or capacity.
        :raises Invalid: for a name or a setting that cannot be right.
        """
        client = self._connector.client()
        if self._connector.here().is_here:
            hold = self._ask_here(client)
            if hold is not None:
                return self._sync(hold)
        return self._sync(run(self._ask(client, True, self._wait if wait is None else wait)))

    def try_acquire(self) -> Optional[S]:
        """Takes it if it is free and nobody waits; else None. It does not wait.

        :raises Unavailable: if the store does not answer in time.
        """
        client = self._connector.client()
        hold = run(self._ask(client, False, None))
        return None if hold is None else self._sync(hold)

    async def _aacquire(self, wait: Optional[float] = None) -> A:
        client = await self._connector.aclient()
        return self._async(await arun(self._ask(client, True, self._wait if wait is None else wait)))

    async def _atry_acquire(self) -> Optional[A]:
        client = await self._connector.aclient()
        hold = await arun(self._ask(client, False, None))
        return None if hold is None else self._async(hold)

    @property
    def aio(self) -> Async[A]:
        """The same for tasks: ``await lock.aio.acquire()``."""
        return Async(self)

    def __enter__(self) -> S:
        lease = self.acquire()
        entry = (id(sys._getframe(1)), threading.get_ident(), lease)
        try:
            self._entered.append(entry)
        except BaseException:
            # A signal's handler has raised it, before or after the append: nobody will leave this block.
            lease._hold.let_go()
            if entry in self._entered:
                self._entered.remove(entry)
            raise
        return lease

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        exc: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self._left(id(sys._getframe(1)), threading.get_ident()).__exit__(kind, exc, trace)

    def __aenter__(self) -> Coroutine[Any, Any, A]:
        return self._aenter(id(sys._getframe(1)))

    async def _aenter(self, block: int) -> A:
        lease = await self._aacquire()
        await lease.__aenter__()
        self._entered.append((block, id(asyncio.current_task()), lease))
        return lease

    def __aexit__(
        self,
        kind: Optional[Type[BaseException]],
        exc: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> Coroutine[Any, Any, None]:
        left: Coroutine[Any, Any, None]
        left = self._left(id(sys._getframe(1)), id(asyncio.current_task())).__aexit__(kind, exc, trace)
        return left

    def _left(self, block: int, who: int) -> Any:
        """The lease of the block that ends.

        A generator's block may be ended by another thread or task than entered it (a dependency of FastAPI, a garbage collector), so
        that its frame says which one it is. Only an `ExitStack` enters and leaves from different frames: then the thread or task says it.
        """
        inside = self._entered[::-1]
        for entry in [one for one in inside if one[0] == block] or [one for one in inside if one[1] == who] or inside:
            if len(inside) > 1 and entry[0] != block and entry[1] != who:
                raise RuntimeError("nobody knows which of several leases this is: leave the block in the thread that entered it")
            self._entered.remove(entry)
            return entry[2]
        raise RuntimeError("this block was not entered")

    def __getstate__(self) -> Dict[str, Any]:
        # To another process goes what it is called. What is held stays.
        return {**self.__dict__, "_entered": []}

    def __call__(self, function: F) -> F:
        """Has a function, or a coroutine function, run under it."""
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def run_async(*args: Any, **kwargs: Any) -> Any:
                async with self:
                    return await function(*args, **kwargs)

            return run_async  # type: ignore[return-value]

        @functools.wraps(function)
        def run_sync(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return run_sync  # type: ignore[return-value]


class Async(Generic[A]):
    """The verbs of a lock as coroutines."""

    def __init__(self, lock: Lockable[Any, A]) -> None:
        self._lock = lock

    def acquire(self, wait: Optional[float] = None) -> Awaitable[A]:
        """As :meth:`Lockable.acquire`. Cancelling the task withdraws the claim."""
        return self._lock._aacquire(wait)

    def try_acquire(self) -> Awaitable[Optional[A]]:
        """As :meth:`Lockable.try_acquire`."""
        return self._lock._atry_acquire()


class Lock(Lockable[Lease, AsyncLease]):
    """A mutex, a side of a read-write lock, a semaphore or a slot pool."""

    _sync = Lease
    _async = AsyncLease

    def __init__(self, connector: Connector, native_lock: native.Lock, wait: Optional[float]) -> None:
        super().__init__(connector, wait)
        self._lock = native_lock

    def _ask(self, client: native.Client, waits: bool, wait: Optional[float]) -> native.Pending:
        return client.acquire(self._lock, wait) if waits else client.try_acquire(self._lock)

    def _ask_here(self, client: native.Client) -> Optional[native.Hold]:
        return client.try_acquire_here(self._lock)


class RwLock:
    """Many readers or one writer: :attr:`read` and :attr:`write` are locks."""

    def __init__(self, read: Lock, write: Lock) -> None:
        self.read = read
        self.write = write


class AllOf(Lockable[Leases, AsyncLeases]):
    """Several locks of any mix, taken all or none."""

    _sync = Leases
    _async = AsyncLeases

    def __init__(self, connector: Connector, locks: Sequence[Lock], wait: Optional[float]) -> None:
        super().__init__(connector, wait)
        self._locks = [lock._lock for lock in locks]

    def _ask(self, client: native.Client, waits: bool, wait: Optional[float]) -> native.Pending:
        return client.several(self._locks, True, waits, wait)


class AnyOf(Lockable[Lease, AsyncLease]):
    """The first of several locks that is free: ``lease.resource`` says which."""

    _sync = Lease
    _async = AsyncLease

    def __init__(self, connector: Connector, locks: Sequence[Lock], wait: Optional[float]) -> None:
        super().__init__(connector, wait)
        self._locks = [lock._lock for lock in locks]

    def _ask(self, client: native.Client, waits: bool, wait: Optional[float]) -> native.Pending:
        return client.several(self._locks, False, waits, wait)


class Campaign(Lockable[Term, AsyncTerm]):
    """A candidacy: what it takes is a term."""

    _sync = Term
    _async = AsyncTerm

    def __init__(self, connector: Connector, name: str, ttl: Optional[float], label: Optional[str]) -> None:
        super().__init__(connector, None)
        self._name = name
        self._ttl = ttl
        self._label = label

    def _ask(self, client: native.Client, waits: bool, wait: Optional[float]) -> native.Pending:
        if wait is not None:
            raise ValueError("a candidate waits for ever, or not at all")
        return client.campaign(self._name, waits, self._ttl, self._label)
