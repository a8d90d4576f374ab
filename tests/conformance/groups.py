"""What the tests of groups have in common."""

import time
from collections.abc import Callable
from typing import Any

from penstock import Client

MODES = ("ordered", "shared")
# Long enough for a busy machine, and only waited for in full where a test fails.
SOON = 20.0


def mode_for(api: Any) -> str:
    """Return one of the modes for one kind of client and the other for the others.

    What differs between the modes is SQL and the same for all clients, so tests that are not about batches need not try
    every pair.
    """
    return "ordered" if isinstance(api, Client) else "shared"


def values(batch: Any) -> list[Any]:
    """Return what is in a batch, decoded."""
    return [message.json() for message in batch.messages]


def offsets(batch: Any) -> list[int]:
    return [message.offset for message in batch.messages]


def drain(api: Any, queue: str, group: str = "default", **options: Any) -> list[Any]:
    """Pop and acknowledge until nothing is left; return all values in the order of delivery."""
    found = []
    while (batch := api.pop(queue, group, **options)) is not None:
        found += values(batch)
        if not batch.settled:
            batch.ack()
    return found


def until(condition: Callable[[], Any]) -> Any:
    """Look again and again until a condition holds, and return what it gave."""
    deadline = time.monotonic() + SOON
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)
    return found


def bury(api: Any, queue: str, group: str, *, reason: str | None = None, error: str | None = None) -> None:
    """Make a dead letter of the next message; the queue must have max_attempts=1."""
    assert api.pop(queue, group, max_messages=1).nack(reason=reason, error=error) == ["dead letter"]


def state(api: Any, queue: str, group: str, partition: str) -> tuple[str, int, int]:
    """Return the newest state of a partition in a group: its name, committed, claimed_to."""
    newest = api.history(queue, group, partition, limit=1)[0]
    return newest.state, newest.committed, newest.claimed_to
