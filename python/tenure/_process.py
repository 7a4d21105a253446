"""What belongs to a process: its clients, what it holds, its log, its end."""

from __future__ import annotations

import atexit
import builtins
import logging
import os
import threading
import time
import weakref
from typing import Any, Dict, List, NoReturn, Optional, Sequence, Tuple

from . import _tenure as native
from ._wait import arun, forget_loops, patched_hub, run, withdraw

#: How long the end of a program waits until its leases are released, in seconds.
EXIT_PATIENCE = 2.0

#: How often a greenlet looks for lines of the log, in seconds.
LOG_PAUSE = 0.1

_HERE = frozenset(("local", "memory"))

if not native.has_package(id(builtins)):
    raise ImportError("tenure serves one interpreter of a process: with mod_wsgi, set `WSGIApplicationGroup %{GLOBAL}`")


class Process:
    """A client of one process."""

    __slots__ = ("client", "connection", "is_here", "pid")

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.connection: Optional[native.Connection] = None
        self.client: Optional[native.Client] = None
        self.is_here = False


class Connector:
    """Connects each process that asks, once, when it asks first."""

    def __init__(
        self,
        url: str,
        label: Optional[str],
        answer_timeout: Optional[float],
        counts: bool,
        scopes: Sequence[str],
    ) -> None:
        self._url = url
        self._settings: Dict[str, Any] = {
            "label": label,
            "answer_timeout": answer_timeout,
            "counts": counts,
            "scopes": list(scopes),
        }
        self._processes: Dict[int, Process] = {}
        self._given = (url, label, answer_timeout, counts, list(scopes))

    def __reduce__(self) -> Tuple[Any, ...]:
        # Another process connects anew.
        return Connector, self._given

    def here(self) -> Process:
        """This process's, connected or not."""
        pid = os.getpid()
        process = self._processes.get(pid)
        # One operation, so that two threads get the same one.
        return process if process is not None else self._processes.setdefault(pid, Process())

    def _connection(self, process: Process) -> native.Connection:
        connection = process.connection
        if connection is None:
            _start_log()
            connection = process.connection = native.Connection(self._url, **self._settings)
        return connection

    def client(self) -> native.Client:
        process = self.here()
        if process.client is None:
            connection = self._connection(process)
            try:
                self._connected(process, run(connection.connected()))
            except BaseException:
                self._failed(process, connection)
                raise
        assert process.client is not None
        return process.client

    async def aclient(self) -> native.Client:
        process = self.here()
        if process.client is None:
            connection = self._connection(process)
            try:
                self._connected(process, await arun(connection.connected()))
            except Exception:
                self._failed(process, connection)
                raise
        assert process.client is not None
        return process.client

    @staticmethod
    def _connected(process: Process, client: native.Client) -> None:
        if process.client is None:
            process.is_here = client.engine() in _HERE
            process.client = client
            process.connection = None

    @staticmethod
    def _failed(process: Process, connection: native.Connection) -> None:
        if process.connection is connection:
            process.connection = None

    def end(self) -> Optional[native.Client]:
        """Forgets this process's client. The next use connects anew."""
        process = self._processes.pop(os.getpid(), None)
        return None if process is None else process.client


class Holding:
    """What this process holds: released at its end, if nobody works under it any more."""

    __slots__ = ("__weakref__", "_hold", "_thread")

    def __init__(self, hold: native.Hold) -> None:
        self._hold = hold
        self._thread = threading.get_ident()
        _keep(self)

    def __reduce__(self) -> NoReturn:
        raise TypeError("what is held belongs to its process: send the text of detach(), and attach() it there")


#: Those of this process, by their place in memory. No `WeakSet`: Python drops what a signal's handler raises inside of its callbacks.
_held: "Dict[int, weakref.ref[Holding]]" = {}
_held_max = 64


def _keep(holding: Holding) -> None:
    global _held_max
    _held[id(holding)] = weakref.ref(holding)
    if len(_held) > _held_max:
        for key, kept in list(_held.items()):
            if kept() is None:
                gone = _held.pop(key, None)
                if gone is not None and gone() is not None:
                    # Another thread's, which has come to this place meanwhile.
                    _held[key] = gone
        _held_max = max(64, 2 * len(_held))


_reads_log = False


def _start_log() -> None:
    global _reads_log
    logger = logging.getLogger("tenure")
    level = logger.getEffectiveLevel()
    native.log_from(max(1, min(level, 255)))
    if not _reads_log:
        _reads_log = True
        # gevent makes a greenlet of a thread, and one that waits for lines would stop all others.
        work = _look_at_log if patched_hub() is not None else _read_log
        threading.Thread(target=work, name="tenure-log", daemon=True).start()


def _read_log() -> None:
    while True:
        _log(native.log_lines(True))


def _look_at_log() -> None:
    while True:
        _log(native.log_lines(False))
        time.sleep(LOG_PAUSE)


def _log(told: Tuple[List[Tuple[int, str, str]], int]) -> None:
    lines, dropped = told
    if dropped:
        logging.getLogger("tenure").warning("%d lines were dropped: their reader was too slow", dropped)
    for level, name, text in lines:
        logging.getLogger(name).log(level, "%s", text)


def _after_fork() -> None:
    global _reads_log
    _held.clear()
    _reads_log = False
    forget_loops()
    native.log_after_fork()


def _at_exit() -> None:
    native.exiting()
    withdraw()
    # A thread that is ended with the interpreter may work until then: what it holds ends with its ttl.
    busy = {thread.ident for thread in threading.enumerate() if thread is not threading.main_thread()}
    held = [kept() for kept in list(_held.values())]
    ended = [holding._hold for holding in held if holding is not None and holding._thread not in busy]
    until = time.monotonic() + EXIT_PATIENCE
    releasing = [hold.release() for hold in ended if hold.is_here() and hold.item() is None]
    wakes = native.Wakes()
    # All are sent before the first is waited for.
    waiting = [pending for pending in releasing if not _is_done(pending, wakes)]
    while waiting and time.monotonic() < until:
        time.sleep(0.001)
        waiting = [pending for pending in waiting if not _is_done(pending, wakes)]


def _is_done(pending: native.Pending, wakes: native.Wakes) -> bool:
    try:
        return pending.poll(wakes, 0)
    except Exception:
        return True


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
