"""Errors of the source and of the sink are signed, so that whoever runs a query can tell them from all others.

Across Spark's processes an exception is a text, and so is what a user's function raises, which may quote a message word
for word. A decision is taken only on lines that begin with a sign: one that whoever starts the query makes up, and that
only the options of its source and of its sink have.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from secrets import token_hex
from typing import Any, TypeVar

from penstock.errors import PenstockError
from penstock.spark.options import Target

# What Spark calls of a reader or a writer, and where something can be refused.
_CALLED = (
    *("prepareForTriggerAvailableNow", "latestOffset", "reportLatestOffset", "partitions", "read"),
    *("write", "commit", "abort"),
)

T = TypeVar("T")


def new_sign() -> str:
    """Return a sign that nobody can guess."""
    return f"penstock-{token_hex(16)}"


def signed_error(text: str, sign: str | None) -> str | None:
    """Return the name and the words of the signed error in a text, or None where there is none."""
    found = None if sign is None else re.search(rf"{re.escape(sign)} (\w+: .*)", text)
    return None if found is None else found[1].strip()


def signs_errors(kind: type[T]) -> type[T]:
    """Let a reader or a writer sign penstock's errors; it has `options` with a target."""
    for name in _CALLED:
        if name in vars(kind):
            setattr(kind, name, _signed(vars(kind)[name]))
    return kind


def _signed(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def call(self: Any, *arguments: Any) -> Any:
        with _signing(self.options.target):
            result = function(self, *arguments)
        return _each(self.options.target, result) if isinstance(result, Iterator) else result

    return call


def _each(target: Target, items: Iterator[Any]) -> Iterator[Any]:
    with _signing(target):
        yield from items


@contextmanager
def _signing(target: Target) -> Iterator[None]:
    try:
        yield
    except PenstockError as error:
        if target.sign is not None:
            words = str(error).splitlines() or [""]
            error.add_note(f"{target.sign} {type(error).__name__}: {words[0]}")
        raise
