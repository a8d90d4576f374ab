"""The parent of all operations."""

from typing import ClassVar, Generic, TypeVar

import msgspec

R = TypeVar("R")


class Operation(msgspec.Struct, Generic[R], frozen=True, tag=True):
    """One thing that a broker can be asked to do: a name, typed arguments, and a reply of type `R`.

    Operations are plain data, so that any transport can run them or send them on. They refuse bad arguments when they
    are made. `repeatable` says that running it twice does no harm, so that a transport may try again when the
    connection broke and nobody knows whether it ran.
    """

    repeatable: ClassVar[bool] = False

    @property
    def stamped(self) -> bool:
        """Whether it takes effect once however often it is run; then it is also tried again when it timed out."""
        return False


class Repeatable(Operation[R], Generic[R], frozen=True):
    """An operation that does no harm when it is run twice."""

    repeatable: ClassVar[bool] = True
