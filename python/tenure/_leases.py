"""What is held: leases, slots, terms, sets of leases."""

from __future__ import annotations

import asyncio
import logging
from types import TracebackType
from typing import Dict, Iterator, NamedTuple, Optional, Type, TypeVar

from . import _tenure as native
from ._errors import Lost, Unavailable
from ._process import Holding
from ._wait import Watch, arun, run

L = TypeVar("L", bound="BaseLease")
_log = logging.getLogger("tenure")


class Part(NamedTuple):
    """One lease of a set."""

    resource: str
    token: int
    claim: str
    number: Optional[int]


class BaseLease(Holding):
    """What every lease has, however its user waits."""

    __slots__ = ("_parts", "_watch")

    def __init__(self, hold: native.Hold) -> None:
        super().__init__(hold)
        self._parts = [Part(*part) for part in hold.parts]
        self._watch: Optional[Watch] = None

    @property
    def resource(self) -> str:
        """The name of what is held."""
        return self._parts[0].resource

    @property
    def token(self) -> int:
        """The fencing token: larger than that of every earlier grant. Pass it on to whatever you write to."""
        return self._parts[0].token

    @property
    def claim(self) -> str:
        """The id of this acquisition: 32 hexadecimal digits."""
        return self._parts[0].claim

    @property
    def number(self) -> Optional[int]:
        """The number of the slot, of a slot pool."""
        return self._parts[0].number

    def expires_in(self) -> float:
        """Seconds until it is lost, if no renewal is answered until then."""
        return self._hold.expires_in()

    def is_lost(self) -> bool:
        """Whether it is of no use any more: lost, released, or of the process that this one was forked from."""
        return self._hold.is_over()

    def check(self) -> None:
        """Raises :class:`Lost` once it is lost. A local look: it costs no round trip."""
        loss = self._hold.loss()
        if loss is not None:
            raise loss

    def detach(self) -> str:
        """Lets go of it without releasing it, as text for another process, which attaches it within its ttl.

        :raises Lost: if it is lost.
        """
        return self._hold.detach()

    def __repr__(self) -> str:
        state = "over" if self.is_lost() else f"{self.expires_in():.1f} s left"
        return f"<{type(self).__name__} {self.resource!r} token={self.token} {state}>"

    def _ended(self, exc: Optional[BaseException]) -> Optional[BaseException]:
        """Why the work under it was not protected to its end."""
        # One that was released or detached inside the block is over as its user wanted; a forked child's never was its own.
        is_held = self._hold.is_here() or self._hold.is_forked()
        return self._hold.loss() if is_held and exc is None else None


class Lease(BaseLease):
    """What a thread holds. It is renewed in the background until it is released, lost, or nobody refers to it.

    ``with`` releases it at the end, and raises :class:`Lost` if it was lost before.
    """

    __slots__ = ()

    def release(self) -> bool:
        """Releases it. Whether it was held until now.

        :raises Unavailable: if the store did not answer: the release goes on in the background.
        """
        here = self._hold.release_here()
        return bool(run(self._hold.release())) if here is None else here

    def lost(self) -> Optional[BaseException]:
        """Waits until it is lost, and returns the :class:`Lost`. None if it is released meanwhile."""
        return self._hold.loss() if run(self._hold.lost()) else None

    def __enter__(self: L) -> L:
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        exc: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        ended = self._ended(exc)
        if ended is not None:
            self._hold.let_go()
            raise ended
        if isinstance(exc, (KeyboardInterrupt, GeneratorExit)):
            # Nobody waits here.
            self._hold.let_go()
            return
        try:
            self.release()
        except Unavailable as error:
            # The work is done. It goes on in the background, and the hold ends by itself.
            _log.debug("the release goes on: %s", error)


class AsyncLease(BaseLease):
    """What a task holds: as :class:`Lease`, with coroutines. ``async with`` cancels its block once it is lost, and raises :class:`Lost`."""

    __slots__ = ()

    async def release(self) -> bool:
        """Releases it. Whether it was held until now.

        :raises Unavailable: if the store did not answer: the release goes on in the background.
        """
        return bool(await arun(self._hold.release()))

    async def lost(self) -> Optional[BaseException]:
        """Waits until it is lost, and returns the :class:`Lost`. None if it is released meanwhile."""
        return self._hold.loss() if await arun(self._hold.lost()) else None

    async def __aenter__(self: L) -> L:
        self._watch = Watch(self._hold.lost())
        return self

    async def __aexit__(
        self,
        kind: Optional[Type[BaseException]],
        exc: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        watch, self._watch = self._watch, None
        if watch is not None and watch.stop():
            loss = self._hold.loss() or Lost("the lease is lost", resource=self.resource)
            self._hold.let_go()
            if exc is None or isinstance(exc, asyncio.CancelledError):
                raise loss from exc
            return
        ended = self._ended(exc)
        if ended is not None:
            self._hold.let_go()
            raise ended
        if isinstance(exc, (asyncio.CancelledError, GeneratorExit)):
            # Nobody waits here when it is cancelled.
            self._hold.let_go()
            return
        try:
            await self.release()
        except Unavailable as error:
            _log.debug("the release goes on: %s", error)


class Term(Lease):
    """The time in which one candidate leads: a lease with a value that everybody sees."""

    __slots__ = ()

    def publish(self, value: bytes) -> None:
        """Shows a value of up to 256 KiB to everybody until the term ends.

        :raises Lost: if the term is over.
        """
        run(self._hold.publish(value))

    def resign(self) -> bool:
        """Lets the next candidate lead: as :meth:`release`."""
        return self.release()


class AsyncTerm(AsyncLease):
    """As :class:`Term`, with coroutines."""

    __slots__ = ()

    async def publish(self, value: bytes) -> None:
        """Shows a value of up to 256 KiB to everybody until the term ends.

        :raises Lost: if the term is over.
        """
        await arun(self._hold.publish(value))

    async def resign(self) -> bool:
        """Lets the next candidate lead: as :meth:`release`."""
        return await self.release()


class _Set:
    __slots__ = ()
    _parts: "list[Part]"

    def __getitem__(self, resource: str) -> Part:
        """The lease of one name: its token and its number."""
        return self._by_name()[resource]

    def __iter__(self) -> Iterator[Part]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)

    def _by_name(self) -> Dict[str, Part]:
        return {part.resource: part for part in self._parts}


class Leases(_Set, Lease):
    """One lease for each name of a set. When one is lost, all are."""

    __slots__ = ()


class AsyncLeases(_Set, AsyncLease):
    """As :class:`Leases`, with coroutines."""

    __slots__ = ()
