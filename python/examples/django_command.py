"""A Django management command that must not overlap: `myapp/management/commands/send_invoices.py`."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError

import tenure

locks = tenure.connect()


def send_invoices(lease: tenure.Lease) -> int:
    """The work. It looks at its lease before each thing that others must not do at the same time."""
    sent = 0
    for _ in range(3):
        lease.check()
        sent += 1
    return sent


class Command(BaseCommand):
    help = "Sends the invoices of the day. Exits at once where another run is at work."

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            with locks.mutex("invoices", wait=0, max_hold=3600) as lease:
                self.stdout.write(f"sent {send_invoices(lease)} invoices")
        except tenure.Timeout as busy:
            raise CommandError(f"another run is at work: {busy.holder}", returncode=75) from None
