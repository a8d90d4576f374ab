"""What all parts of the demo share: the client, names of its own, and the check of a count."""

import time
from collections.abc import Callable
from contextlib import suppress
from uuid import uuid4

from psycopg.sql import SQL, Identifier

from penstock.client.client import Client
from penstock.errors import NotFound, PenstockError

_STEP = 0.05
_PATIENCE = 60.0


class Stage:
    """One run of the demo: its queues and its table."""

    def __init__(self, client: Client, echo: Callable[[str], None]) -> None:
        self.client = client
        self.echo = echo
        # Its own names, so that two runs at once do not meet.
        mark = uuid4().hex[:8]
        self.orders, self.events, self.clicks, self.invoices, self.payments, self.large = self.queues = tuple(
            f"demo-{mark}-{name}" for name in ("orders", "events", "clicks", "invoices", "payments", "large")
        )
        self.table = Identifier(f"penstock_demo_{mark}")

    def check(self, what: str, found: object, expected: object) -> None:
        """Tell that something is as it must be, or stop."""
        self._require(what, found, expected)
        shown = len(found) if isinstance(found, list | dict) else found
        self.echo(f"   {what}: {shown} ✓")

    def row(self, name: str, found: int, expected: int) -> None:
        """Show a number in a table, if it is as it must be, or stop."""
        self._require(name, found, expected)
        self.echo(f"   {name:<24}{found:>10,} ✓")

    def wait(self, what: str, reached: Callable[[], bool]) -> None:
        """Wait until something is so."""
        deadline = time.monotonic() + _PATIENCE
        while not reached():
            if time.monotonic() > deadline:
                raise PenstockError(f"the demo waited {_PATIENCE:g} s in vain for this: {what}")
            time.sleep(_STEP)

    def clean_up(self) -> None:
        """Remove the queues and the table."""
        for queue in self.queues:
            with suppress(NotFound):
                self.client.delete(queue)
        with self.client.transaction() as tx:
            tx.connection.execute(SQL("DROP TABLE IF EXISTS {}").format(self.table))

    def _require(self, what: str, found: object, expected: object) -> None:
        if found != expected:
            raise PenstockError(
                f"the demo found something wrong: {what}: {found!r:.200}, but must be {expected!r:.200}"
            )
