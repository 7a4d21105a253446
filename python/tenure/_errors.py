"""The errors, by kind."""

from __future__ import annotations

from typing import Optional

__all__ = [
    "Conflict",
    "Error",
    "Finished",
    "Internal",
    "Invalid",
    "Lost",
    "Stale",
    "Timeout",
    "Unavailable",
    "Unsupported",
]


class Error(Exception):
    """What tenure raises. ``hint`` says what can be done about it.

    ``resource`` is the name that it is about, ``reason`` why a lease was lost, ``holder`` who was in the way.
    """

    hint: Optional[str]
    resource: Optional[str]
    reason: Optional[str]
    holder: Optional[str]

    def __init__(
        self,
        message: str = "",
        *,
        hint: Optional[str] = None,
        resource: Optional[str] = None,
        reason: Optional[str] = None,
        holder: Optional[str] = None,
    ) -> None:
        super().__init__(message)
        self.hint = hint
        self.resource = resource
        self.reason = reason
        self.holder = holder


class Lost(Error):
    """The lease is lost: its time was over, or somebody broke it. Stop the work."""


class Timeout(Error, TimeoutError):
    """The wait was over before it could be granted. ``holder`` is who had it, if the engine knows."""


class Finished(Error):
    """A claim id that was given has been used, and its hold is over."""


class Unavailable(Error, ConnectionError):
    """The store did not answer in time. It may have done what was asked of it."""


class Conflict(Error):
    """The name is in use with another kind or capacity."""


class Invalid(Error, ValueError):
    """A name, a setting or a URL that cannot be right."""


class Unsupported(Error):
    """This engine cannot do that, or this process cannot."""


class Internal(Error):
    """A bug of tenure, or its client has been closed."""


class Stale(Error):
    """A fence refuses a holder that comes too late. ``max`` is the largest token that it has seen."""

    max: int

    def __init__(self, message: str = "", *, max: int = 0, hint: Optional[str] = None) -> None:
        super().__init__(message, hint=hint)
        self.max = max
