"""The client: what a program calls."""

from __future__ import annotations

import json
import os
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from . import _tenure as native
from ._election import Election
from ._leases import AsyncLease, Lease
from ._locks import AllOf, AnyOf, Lock, RwLock
from ._process import Connector
from ._queue import Queue
from ._single_flight import SingleFlight, _dumps
from ._wait import arun, run


class HoldView(NamedTuple):
    """A hold as seen from outside. Times in seconds."""

    label: str
    token: int
    number: Optional[int]
    weight: int
    held_for: float
    ends_in: float
    #: Whether it only rests: its holder has released it, or vanished.
    is_resting: bool


class View(NamedTuple):
    """A name as seen from outside."""

    resource: str
    kind: str
    capacity: int
    used: int
    last_token: int
    holds: List[HoldView]
    waiting: int
    waiters: List[str]
    value: Optional[bytes]


class Finding(NamedTuple):
    """What an engine found out about its store."""

    #: ``good``, ``warning`` or ``bad``.
    severity: str
    what: str
    found: str
    hint: Optional[str]


def _view(told: Any) -> View:
    (resource, kind, capacity, used), (last, holds, waiting, waiters, value) = told
    return View(resource, kind, capacity, used, last, [HoldView(*hold) for hold in holds], waiting, waiters, value)


class Client:
    """A store of locks. Each process that uses it connects once, when it first asks for something: also a forked child."""

    def __init__(self, connector: Connector) -> None:
        self._connector = connector

    @property
    def aio(self) -> AsyncClient:
        """What of this concerns no single lock, as coroutines."""
        return AsyncClient(self)

    def mutex(
        self,
        name: str,
        *,
        wait: Optional[float] = None,
        ttl: Optional[float] = None,
        max_hold: Optional[float] = None,
        min_hold: Optional[float] = None,
        lock_delay: Optional[float] = None,
        label: Optional[str] = None,
        claim_id: Optional[str] = None,
    ) -> Lock:
        """One holder at a time. All times are in seconds.

        :param wait: how long to wait; 0 does not queue; by default for ever.
        :param ttl: how long the hold lasts after a holder has died: 30 by default, 0.1 to 86400. A living one is renewed.
        :param max_hold: how long it may be held at most.
        :param min_hold: keeps it from others until so long after the grant, even if released sooner.
        :param lock_delay: keeps it from others for so long after its holder has vanished.
        :param label: a note shown to others beside the holder.
        :param claim_id: 32 random hexadecimal digits, used once: repeated, they are the same grant.
        """
        settings: Dict[str, Any] = dict(
            ttl=ttl, max_hold=max_hold, min_hold=min_hold, lock_delay=lock_delay, label=label
        )
        return self._lock("mutex", name, wait=wait, claim_id=claim_id, **settings)

    def rw_lock(
        self,
        name: str,
        *,
        wait: Optional[float] = None,
        ttl: Optional[float] = None,
        max_hold: Optional[float] = None,
        min_hold: Optional[float] = None,
        lock_delay: Optional[float] = None,
        label: Optional[str] = None,
    ) -> RwLock:
        """Many readers or one writer. Settings as of :meth:`mutex`."""
        settings: Dict[str, Any] = dict(
            wait=wait, ttl=ttl, max_hold=max_hold, min_hold=min_hold, lock_delay=lock_delay, label=label
        )
        return RwLock(self._lock("read", name, **settings), self._lock("write", name, **settings))

    def semaphore(
        self,
        name: str,
        capacity: int,
        *,
        weight: int = 1,
        wait: Optional[float] = None,
        ttl: Optional[float] = None,
        max_hold: Optional[float] = None,
        min_hold: Optional[float] = None,
        lock_delay: Optional[float] = None,
        label: Optional[str] = None,
        claim_id: Optional[str] = None,
    ) -> Lock:
        """At most ``capacity`` units at a time, of which a holder takes ``weight``. Settings as of :meth:`mutex`."""
        settings: Dict[str, Any] = dict(
            ttl=ttl, max_hold=max_hold, min_hold=min_hold, lock_delay=lock_delay, label=label
        )
        return self._lock("semaphore", name, capacity, weight, wait=wait, claim_id=claim_id, **settings)

    def slot_pool(
        self,
        name: str,
        slots: int,
        *,
        wait: Optional[float] = None,
        ttl: Optional[float] = None,
        max_hold: Optional[float] = None,
        min_hold: Optional[float] = None,
        lock_delay: Optional[float] = None,
        label: Optional[str] = None,
        claim_id: Optional[str] = None,
    ) -> Lock:
        """Numbers 0 to ``slots`` - 1, each with one holder: ``lease.number``. Settings as of :meth:`mutex`."""
        settings: Dict[str, Any] = dict(
            ttl=ttl, max_hold=max_hold, min_hold=min_hold, lock_delay=lock_delay, label=label
        )
        return self._lock("slot_pool", name, slots, wait=wait, claim_id=claim_id, **settings)

    def _lock(
        self, kind: str, name: str, capacity: int = 1, weight: int = 1, *, wait: Optional[float], **settings: Any
    ) -> Lock:
        return Lock(self._connector, native.Lock(kind, name, capacity, weight, **settings), wait)

    def all(self, *locks: Lock, wait: Optional[float] = None) -> AllOf:
        """Several locks of any mix, all or none, without deadlock: up to 128. A slot pool may be named more than once."""
        return AllOf(self._connector, locks, wait)

    def any(self, *locks: Lock, wait: Optional[float] = None) -> AnyOf:
        """The first of several locks that is free: up to 128."""
        return AnyOf(self._connector, locks, wait)

    def election(self, name: str, *, ttl: Optional[float] = None, label: Optional[str] = None) -> Election:
        """One leader at a time, and everybody can ask who it is.

        :param ttl: for how many seconds nobody leads after a leader has died: 30 by default.
        """
        return Election(self._connector, name, ttl, label)

    def single_flight(
        self,
        key: str,
        *,
        fresh: float = 60.0,
        stale: Optional[float] = None,
        ttl: Optional[float] = None,
        dumps: Callable[[Any], bytes] = _dumps,
        loads: Callable[[bytes], Any] = json.loads,
    ) -> SingleFlight:
        """A value that one process loads for all; also a decorator, whose key may name arguments: ``rates/{currency}``.

        :param fresh: nobody loads again within so many seconds.
        :param stale: for so long after that, callers who find another one loading take the old value and do not wait.
        :param ttl: for how many seconds a loader that has vanished blocks the others: 30 by default.
        :param dumps: what the decorator makes bytes of a result with, ``loads`` the other way round: JSON by default.
        """
        return SingleFlight(self._connector, key, fresh, stale, ttl, dumps, loads)

    def queue(
        self,
        name: str,
        *,
        ttl: Optional[float] = None,
        interval: Optional[float] = None,
        group_interval: Optional[float] = None,
        max_attempts: Optional[int] = None,
        label: Optional[str] = None,
    ) -> Queue:
        """Work in line. All times are in seconds.

        :param ttl: how long an item waits after its consumer has died: 30 by default.
        :param interval: the least time between two dispatches, ``group_interval`` of one group.
        :param max_attempts: after how many deliveries an item becomes a dead letter: 10 by default; 0: never.
        """
        orders = native.Orders(
            ttl=ttl, interval=interval, group_interval=group_interval, max_attempts=max_attempts, label=label
        )
        return Queue(self._connector, name, orders)

    def attach(self, detached: str) -> Optional[Lease]:
        """Makes a lease of what :meth:`Lease.detach` returned, in any process of the store. None: the hold has ended.

        :raises Unsupported: if it is bound to the client that detached it (``local:``, ZooKeeper, Redlock).
        """
        hold = run(self._connector.client().attach(detached))
        return None if hold is None else Lease(hold)

    def inspect(self, prefix: str = "") -> List[View]:
        """Everything under a prefix that is held or waited for."""
        return [_view(told) for told in run(self._connector.client().inspect(prefix))]

    def view(self, name: str) -> Optional[View]:
        """One name. None if it is idle."""
        told = run(self._connector.client().view(name))
        return None if told is None else _view(told)

    def doctor(self) -> List[Finding]:
        """What the engine finds out about its store: version, settings, clock, rights."""
        return [Finding(*finding) for finding in run(self._connector.client().doctor())]

    def raise_floor(self, name: str, token: int) -> None:
        """Makes this client's next token of a name larger than this one: after :class:`Stale`."""
        self._connector.client().raise_floor(name, token)

    def metrics(self, *, openmetrics: bool = False) -> str:
        """What this process has counted, as a page for Prometheus."""
        return self._connector.client().metrics(openmetrics)

    def counts(self) -> Dict[Tuple[str, str], Dict[str, int]]:
        """What this process has counted, by primitive and scope: ``counts()["mutex", "billing/*"]["granted"]``."""
        return self._connector.client().counts()

    def close(self) -> None:
        """Ends this process's client once what was released is answered. The next use connects anew."""
        client = self._connector.end()
        if client is not None:
            run(client.close())


class AsyncClient:
    """What of a :class:`Client` concerns no single lock, as coroutines."""

    def __init__(self, client: Client) -> None:
        self._connector = client._connector

    async def attach(self, detached: str) -> Optional[AsyncLease]:
        """As :meth:`Client.attach`."""
        hold = await arun((await self._connector.aclient()).attach(detached))
        return None if hold is None else AsyncLease(hold)

    async def inspect(self, prefix: str = "") -> List[View]:
        """As :meth:`Client.inspect`."""
        return [_view(told) for told in await arun((await self._connector.aclient()).inspect(prefix))]

    async def view(self, name: str) -> Optional[View]:
        """As :meth:`Client.view`."""
        told = await arun((await self._connector.aclient()).view(name))
        return None if told is None else _view(told)

    async def doctor(self) -> List[Finding]:
        """As :meth:`Client.doctor`."""
        return [Finding(*finding) for finding in await arun((await self._connector.aclient()).doctor())]

    async def close(self) -> None:
        """As :meth:`Client.close`."""
        client = self._connector.end()
        if client is not None:
            await arun(client.close())


def connect(
    url: Optional[str] = None,
    *,
    label: Optional[str] = None,
    answer_timeout: Optional[float] = None,
    counts: bool = True,
    scopes: Sequence[str] = (),
) -> Client:
    """Names a store: ``local:`` (this machine, no server), ``redis://host``, ``postgres://host/database``, ``etcd://h1,h2,h3``, ...

    Nothing is connected before something is asked for, so that this may stand at the top of a module, before any fork.

    :param url: by default what ``TENURE_ENGINE`` says, else ``local:``.
    :param label: a note shown to others beside what is held.
    :param answer_timeout: how many seconds a store may take for an answer: 2 by default.
    :param counts: whether it counts for :meth:`Client.metrics`.
    :param scopes: patterns of names that are counted together, ``billing/*`` for instance.
    """
    if url is None:
        url = os.environ.get("TENURE_ENGINE") or "local:"
    return Client(Connector(url, label, answer_timeout, counts, scopes))
