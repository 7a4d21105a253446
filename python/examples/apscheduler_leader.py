"""APScheduler on every machine, with one leader."""

from threading import Event
from typing import Any

from apscheduler.schedulers.background import BackgroundScheduler

import tenure

locks = tenure.connect()
runs: "list[int]" = []


def make_scheduler() -> Any:
    scheduler = BackgroundScheduler()
    scheduler.add_job(lambda: runs.append(1), "interval", seconds=0.1)
    return scheduler


def lead(stop: Event) -> None:
    """Leads until it is told to stop; raises `tenure.Lost` if it does not lead any more."""
    with locks.election("scheduler", ttl=10) as term:
        scheduler = make_scheduler()
        scheduler.start()
        try:
            while not stop.wait(1):
                term.check()
        finally:
            scheduler.shutdown(wait=False)


def main(stop: Event) -> None:
    """Follows again after a lost term, and campaigns anew."""
    while not stop.is_set():
        try:
            lead(stop)
        except tenure.Lost as lost:
            print(f"follows: {lost}")
