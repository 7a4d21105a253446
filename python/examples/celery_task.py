"""A lock that is taken where a task is sent, and released where it has run."""

import os
from typing import Any

from celery import Celery
from celery.exceptions import Reject

import tenure

# A store whose leases go from one client to another: Redis, PostgreSQL, MySQL, etcd.
locks = tenure.connect()
app = Celery("billing", broker=os.environ.get("BROKER", "redis://127.0.0.1"))
app.conf.update(task_acks_late=True, worker_prefetch_multiplier=1)


def charge(account: str, token: int) -> None:
    """The work."""


def request(account: str) -> bool:
    """In a web request: takes the lock, so that nobody else begins the same work, and answers at once."""
    lease = locks.mutex(f"account/{account}", ttl=60).try_acquire()
    if lease is None:
        return False
    bill.delay(account, lease.detach())
    return True


@app.task  # type: ignore[misc,untyped-decorator,unused-ignore]
def bill(account: str, detached: str) -> Any:
    lease = locks.attach(detached)
    if lease is None:
        raise Reject("it lay in line for longer than its ttl", requeue=False)
    with lease:
        charge(account, lease.token)
