"""Who pushes, and how its pushes are told apart.

A push whose connection broke may have been stored or not. So a client numbers its pushes: one that comes again under
the same number gets the first answer, and stores nothing. Numbers are never used twice, and may have gaps.
"""

from itertools import count
from typing import NamedTuple
from uuid import UUID, uuid4


class Stamp(NamedTuple):
    """What tells one push from all others."""

    producer: UUID
    sequence: int


class Producer:
    """A client, as far as it pushes. Safe to share between threads."""

    def __init__(self) -> None:
        self.id = uuid4()
        self._sequences = count(1)

    def stamp(self) -> Stamp:
        """Return the stamp of the next push."""
        return Stamp(self.id, next(self._sequences))
