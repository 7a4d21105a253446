"""Values that one process of a fleet loads for all."""

from __future__ import annotations

import functools
import inspect
import json
from typing import Any, Awaitable, Callable, NamedTuple, Optional, TypeVar

from ._process import Connector
from ._wait import arun, run

F = TypeVar("F", bound=Callable[..., Any])


class Fetched(NamedTuple):
    """A value, and where it came from."""

    value: bytes
    #: ``fresh``: another has loaded it; ``stale``: another is loading the next one; ``loaded``: this call has.
    source: str
    #: Under which token it was loaded. 0 of a stale one.
    token: int


def _dumps(value: Any) -> bytes:
    return json.dumps(value).encode()


class SingleFlight:
    """A guard against cache stampedes. As a decorator, it has the results of a function loaded once for a whole fleet."""

    def __init__(
        self,
        connector: Connector,
        key: str,
        fresh: float,
        stale: Optional[float],
        ttl: Optional[float],
        dumps: Callable[[Any], bytes],
        loads: Callable[[bytes], Any],
    ) -> None:
        self._connector = connector
        self._key = key
        self._fresh = fresh
        self._stale = stale
        self._ttl = ttl
        self._dumps = dumps
        self._loads = loads

    @property
    def aio(self) -> AsyncSingleFlight:
        """The same for tasks."""
        return AsyncSingleFlight(self)

    def get(self, load: Callable[[], bytes]) -> Fetched:
        """The value if it is fresh; otherwise loads it, waits for who loads it, or returns the stale one.

        :raises Lost: if this call has loaded it, and its lease was lost meanwhile.
        :raises Unavailable: if the store does not answer.
        :raises Invalid: for a value of more than 256 KiB.
        """
        return self._fetch(load, False)

    def refresh(self, load: Callable[[], bytes]) -> Fetched:
        """Loads it although it is fresh."""
        return self._fetch(load, True)

    def forget(self) -> None:
        """Drops the value: for whoever changes the data that it was made of. It waits for a load that is under way."""
        run(self._connector.client().forget(self._key))

    def _fetch(self, load: Callable[[], bytes], is_refresh: bool) -> Fetched:
        client = self._connector.client()
        flight = client.flight(self._key, fresh=self._fresh, stale=self._stale, ttl=self._ttl, is_refresh=is_refresh)
        while True:
            value, source, token = run(flight.step())
            if value is not None:
                return Fetched(value, source, token)
            # An exception drops the flight, and another one loads.
            flight.loaded(load())

    async def _afetch(self, load: Callable[[], Awaitable[bytes]], is_refresh: bool) -> Fetched:
        client = await self._connector.aclient()
        flight = client.flight(self._key, fresh=self._fresh, stale=self._stale, ttl=self._ttl, is_refresh=is_refresh)
        while True:
            value, source, token = await arun(flight.step())
            if value is not None:
                return Fetched(value, source, token)
            flight.loaded(await load())

    def _named(self, signature: inspect.Signature, args: Any, kwargs: Any) -> SingleFlight:
        """The same for these arguments: a key ``rates/{currency}`` names one of the function's."""
        if "{" not in self._key:
            return self
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        key = self._key.format(**bound.arguments)
        return SingleFlight(self._connector, key, self._fresh, self._stale, self._ttl, self._dumps, self._loads)

    def __call__(self, function: F) -> F:
        """Has what a function, or a coroutine function, returns loaded once for all. It is kept as JSON, or as ``dumps`` says."""
        signature = inspect.signature(function)
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def get_async(*args: Any, **kwargs: Any) -> Any:
                async def load() -> bytes:
                    return self._dumps(await function(*args, **kwargs))

                fetched = await self._named(signature, args, kwargs)._afetch(load, False)
                return self._loads(fetched.value)

            return get_async  # type: ignore[return-value]

        @functools.wraps(function)
        def get_sync(*args: Any, **kwargs: Any) -> Any:
            def load() -> bytes:
                return self._dumps(function(*args, **kwargs))

            return self._loads(self._named(signature, args, kwargs)._fetch(load, False).value)

        return get_sync  # type: ignore[return-value]


class AsyncSingleFlight:
    """The verbs of a :class:`SingleFlight` as coroutines."""

    def __init__(self, flight: SingleFlight) -> None:
        self._flight = flight

    async def get(self, load: Callable[[], Awaitable[bytes]]) -> Fetched:
        """As :meth:`SingleFlight.get`."""
        return await self._flight._afetch(load, False)

    async def refresh(self, load: Callable[[], Awaitable[bytes]]) -> Fetched:
        """As :meth:`SingleFlight.refresh`."""
        return await self._flight._afetch(load, True)

    async def forget(self) -> None:
        """As :meth:`SingleFlight.forget`."""
        client = await self._flight._connector.aclient()
        await arun(client.forget(self._flight._key))
