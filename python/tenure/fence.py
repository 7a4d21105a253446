"""The other side of a token: a resource refuses a holder that comes too late.

``check`` and the write that it guards must be one step: hold a lock of your own around both, or use the statements of the
guide on fencing in a transaction of your database.
"""

from __future__ import annotations

import os
from typing import Optional, Protocol, Union

from . import _tenure as native
from ._errors import Stale

__all__ = ["File", "Held", "Memory", "slot_key"]

slot_key = native.slot_key


class Held(Protocol):
    """A lease, a term or a delivery."""

    @property
    def token(self) -> int: ...
    @property
    def claim(self) -> str: ...


def _judge(key: str, seen: Optional[int], token: int) -> None:
    if seen is not None:
        hint = "stop: a later holder has been at work"
        raise Stale(f"the token {token} comes too late for {key!r}: {seen} was seen", max=seen, hint=hint)


class Memory:
    """Fences by name, for what this process alone writes."""

    def __init__(self) -> None:
        self._fence = native.MemoryFence()

    def check(self, key: str, lease: Held) -> None:
        """Accepts a write, and raises :class:`tenure.Stale` if a later holder was accepted before."""
        _judge(key, self._fence.check(key, lease.token, lease.claim), lease.token)

    def check_read(self, key: str, lease: Held) -> None:
        """As :meth:`check`, for one that only reads."""
        _judge(key, self._fence.check(key, lease.token, lease.claim, True), lease.token)


class File:
    """Fences by name in a file, which ``tenure fence check`` uses, too."""

    def __init__(self, path: Union[str, os.PathLike[str]], wait: Optional[float] = None) -> None:
        """:param wait: how many seconds it waits for others that use the file."""
        self._fence = native.FileFence(path, wait)

    def check(self, key: str, lease: Held) -> None:
        """Accepts a write, and raises :class:`tenure.Stale` if a later holder was accepted before."""
        _judge(key, self._fence.check(key, lease.token, lease.claim), lease.token)

    def check_read(self, key: str, lease: Held) -> None:
        """As :meth:`check`, for one that only reads."""
        _judge(key, self._fence.check(key, lease.token, lease.claim, True), lease.token)
