"""Hints between processes: that something was pushed, so that those who wait elsewhere look sooner.

A hint may be lost, so nothing depends on it.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec


class Hint(msgspec.Struct, omit_defaults=True):
    """Who pushed, and to which queues. The sender is known by it, and does not wake itself."""

    sender: str
    queues: list[str]
    # Set where a push that took it along did not send it, because no group had to be woken.
    spared: bool = False

    def encode(self, most_bytes: int) -> bytes:
        """Write it in so many bytes; some of the queues will do where not all have room."""
        payload = msgspec.json.encode(self)
        if len(payload) <= most_bytes:
            return payload
        return Hint(self.sender, self.queues[: len(self.queues) // 2]).encode(most_bytes)


class HintListener(Protocol):
    """Who wants to hear that other processes have pushed."""

    def heard(self, queues: Sequence[str]) -> None:
        """Take note that somebody pushed to these queues; called from any thread."""

    def sent(self) -> None:
        """Take note that a hint was sent to others; called from any thread."""

    def failed(self) -> None:
        """Take note that hints do not get through at present; called from any thread."""


class Hints(Protocol):
    """The hints of one listener."""

    @property
    def listening(self) -> bool:
        """Whether the hints of others arrive at present."""

    def listen(self) -> None:
        """Hear the hints of others, too; until then hints are only sent."""

    def announce(self, queues: Iterable[str]) -> None:
        """Say that something was pushed to these queues, in a moment."""

    def carry(self, queues: Iterable[str]) -> Hint | None:
        """Return the hint for a push to take along in its own transaction; None where it is announced afterwards."""

    def carried(self, hint: Hint) -> None:
        """Take note that the push that took a hint along has committed."""

    def close(self) -> None:
        """Listen no more."""


class HintSource(Protocol):
    """The part of a transport that hints need; both kinds of transport have it."""

    @property
    def address(self) -> str:
        """What identifies the broker within this process."""

    @property
    def can_listen(self) -> bool:
        """Whether hints arrive here, as far as is known; False before it is open."""

    def listen(self, listener: HintListener) -> Hints:
        """Exchange hints with other processes, until they are closed."""
