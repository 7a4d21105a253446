"""Elections."""

from __future__ import annotations

from typing import AsyncIterator, Iterator, NamedTuple, Optional, Tuple

from ._leases import AsyncTerm, Term
from ._locks import Async, Campaign
from ._process import Connector
from ._wait import arun, run


class Leader(NamedTuple):
    """Who leads."""

    label: str
    token: int
    value: Optional[bytes]


def _leader(told: Optional[Tuple[str, int, Optional[bytes]]]) -> Optional[Leader]:
    return None if told is None else Leader(*told)


class Election(Campaign):
    """One leader at a time. ``with`` campaigns, and leads until the end of the block."""

    def __init__(self, connector: Connector, name: str, ttl: Optional[float], label: Optional[str]) -> None:
        super().__init__(connector, name, ttl, label)

    @property
    def aio(self) -> AsyncElection:
        """The same for tasks."""
        return AsyncElection(self)

    def campaign(self) -> Term:
        """Waits until this candidate leads.

        :raises Unavailable: if the store is silent for too long.
        """
        return self.acquire()

    def try_campaign(self) -> Optional[Term]:
        """Leads if nobody leads or campaigns; else None."""
        return self.try_acquire()

    def leader(self) -> Optional[Leader]:
        """Who leads. None if nobody does."""
        return _leader(run(self._connector.client().leader(self._name)))

    def changes(self) -> Iterator[Optional[Leader]]:
        """The present leader first, then each change. A slow reader misses some, but never the latest."""
        changes = self._connector.client().leaders(self._name)
        while True:
            is_there, leader = run(changes.next())
            if not is_there:
                return
            yield _leader(leader)


class AsyncElection(Async[AsyncTerm]):
    """The verbs of an :class:`Election` as coroutines."""

    def __init__(self, election: Election) -> None:
        super().__init__(election)
        self._election = election

    async def campaign(self) -> AsyncTerm:
        """Waits until this candidate leads."""
        return await self._election._aacquire()

    async def try_campaign(self) -> Optional[AsyncTerm]:
        """Leads if nobody leads or campaigns; else None."""
        return await self._election._atry_acquire()

    async def leader(self) -> Optional[Leader]:
        """Who leads. None if nobody does."""
        client = await self._election._connector.aclient()
        return _leader(await arun(client.leader(self._election._name)))

    async def changes(self) -> AsyncIterator[Optional[Leader]]:
        """The present leader first, then each change."""
        client = await self._election._connector.aclient()
        changes = client.leaders(self._election._name)
        while True:
            is_there, leader = await arun(changes.next())
            if not is_there:
                return
            yield _leader(leader)
