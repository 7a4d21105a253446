"""Locks, leases, worker slots, leader election and FIFO queues on the store you already run.

>>> import tenure
>>> locks = tenure.connect("memory:")
>>> with locks.mutex("billing/4711", ttl=30, wait=5) as lease:
...     lease.check()

Everything that can be waited for serves threads (``with``, ``for``, plain calls) and tasks (``async with``, ``async for``,
and the same names below ``.aio``). Times are in seconds. What goes wrong is an :class:`Error` with a ``hint``.
"""

from . import fence
from ._client import AsyncClient, Client, Finding, HoldView, View, connect
from ._election import AsyncElection, Election, Leader
from ._errors import (
    Conflict,
    Error,
    Finished,
    Internal,
    Invalid,
    Lost,
    Stale,
    Timeout,
    Unavailable,
    Unsupported,
)
from ._leases import AsyncLease, AsyncLeases, AsyncTerm, Lease, Leases, Part, Term
from ._locks import AllOf, AnyOf, Async, Lock, Lockable, RwLock
from ._queue import (
    AsyncDelivery,
    AsyncQueue,
    Delivery,
    Item,
    Items,
    Pushed,
    Queue,
    QueueStats,
    stop_on_signals,
)
from ._single_flight import AsyncSingleFlight, Fetched, SingleFlight
from ._tenure import Stop

__all__ = [
    "AllOf",
    "AnyOf",
    "Async",
    "AsyncClient",
    "AsyncDelivery",
    "AsyncElection",
    "AsyncLease",
    "AsyncLeases",
    "AsyncQueue",
    "AsyncSingleFlight",
    "AsyncTerm",
    "Client",
    "Conflict",
    "Delivery",
    "Election",
    "Error",
    "Fetched",
    "Finding",
    "Finished",
    "HoldView",
    "Internal",
    "Invalid",
    "Item",
    "Items",
    "Leader",
    "Lease",
    "Leases",
    "Lock",
    "Lockable",
    "Lost",
    "Part",
    "Pushed",
    "Queue",
    "QueueStats",
    "RwLock",
    "SingleFlight",
    "Stale",
    "Stop",
    "Term",
    "Timeout",
    "Unavailable",
    "Unsupported",
    "View",
    "connect",
    "fence",
    "stop_on_signals",
]
