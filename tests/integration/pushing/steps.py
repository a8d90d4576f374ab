"""The steps of producers who delay messages or mark them, each on a connection that the test chooses."""

from datetime import timedelta
from typing import Any

from groups.steps import run, start
from log.interleaving import Running

from databases import Connection
from penstock import Message, PushResult
from penstock.broker.operations.operation import Operation
from penstock.broker.operations.pushing import CancelScheduled, ListScheduled, Push
from penstock.broker.operations.reading import Read
from penstock.broker.places import Place
from penstock.broker.pushing import PushBatch, due
from penstock.client import pushes

LATER = 3600.0


def push_call(
    *messages: Any, partition: str = "p", delay: float | None = None, dedupe_id: str | None = None
) -> Operation[list[PushResult]]:
    """Return a push to queue q."""
    gathered = pushes.gather(list(messages), partition, None, None, dedupe_id)
    return Push([PushBatch.of(Place("q", partition), gathered, due(delay, None))])


def push(connection: Connection, *messages: Any, **options: Any) -> PushResult:
    """Push, and return what came of it."""
    return run(connection, push_call(*messages, **options))[0]


def schedule(connection: Connection, *messages: Any, partition: str = "p", **options: Any) -> int:
    """Push messages that come in an hour; return the id under which they wait."""
    result = push(connection, *messages, partition=partition, delay=LATER, **options)
    assert result.scheduled is not None
    (scheduled_id,) = result.scheduled.ids
    return scheduled_id


def mark(dedupe_id: str, value: Any = None) -> Message:
    """Return a message with a dedupe id."""
    return Message(dedupe_id if value is None else value, dedupe_id=dedupe_id)


def come_due(connection: Connection) -> None:
    """Let time pass for what is scheduled."""
    connection.execute("UPDATE penstock.scheduled SET due_at = due_at - interval '1 day'")


def age_ids(connection: Connection, age: timedelta) -> None:
    """Let time pass for dedupe ids."""
    connection.execute("UPDATE penstock.dedupe_ids SET seen_at = seen_at - %s WHERE isfinite(seen_at)", (age,))


def cancel(connection: Connection, *ids: int) -> list[int]:
    return run(connection, CancelScheduled(ids))


def start_cancel(connection: Connection, *ids: int) -> Running:
    return start(connection, CancelScheduled(ids))


def waiting(connection: Connection) -> list[int]:
    """Return the ids of all that is scheduled, in the order it is due."""
    return [each.scheduled_id for each in run(connection, ListScheduled(limit=1000))]


def values(connection: Connection, partition: str = "p") -> list[Any]:
    """Return what is in the log of a partition."""
    place = Place("q", partition)
    return [message.json() for message in run(connection, Read(place, max_bytes=1 << 20)).unpack(place)]
