"""Errors of the source and of the sink are signed, so that whoever runs a query can tell them from all others.

Across Spark's processes an exception is a text, and so is what a user's function raises, which may quote a message word
for word. A decision is taken only on lines that begin with a sign: one that whoever starts the query makes up, and that
only the options of its source and of its sink have.

The text must be one that UTF-8 can encode: PySpark cannot send any other, and Spark would wait for it for ever. What
cannot be encoded is escaped. Workers that run users' functions have `penstock.spark.daemon` for this; those that plan
a query are started by PySpark's own daemon, whatever the session says.
"""

import re
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from secrets import token_hex
from typing import Any, TypeVar

from penstock.engine.texts import storable
from penstock.errors import PenstockError
from penstock.spark.options import Target

# What Spark calls of a data source, and of a reader or a writer, and where something can be refused.
_CALLED_OF_SOURCE = ("schema", "reader", "streamReader", "writer", "streamWriter")
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


def escapes_errors(kind: type[T]) -> type[T]:
    """Let a data source raise only errors that PySpark can send."""
    for name in _CALLED_OF_SOURCE:
        if name in vars(kind):
            setattr(kind, name, _escaping()(vars(kind)[name]))
    return kind


def _signed(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def call(self: Any, *arguments: Any) -> Any:
        with _escaping(), _signing(self.options.target):
            result = function(self, *arguments)
        return _each(self.options.target, result) if isinstance(result, Iterator) else result

    return call


def _each(target: Target, items: Iterator[Any]) -> Iterator[Any]:
    with _escaping(), _signing(target):
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


@contextmanager
def _escaping() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if _can_be_sent(error):
            raise
        raise _escaped(error) from None


def _can_be_sent(error: Exception) -> bool:
    try:
        "".join(traceback.format_exception(error)).encode()
    except UnicodeEncodeError:
        return False
    return True


def _escaped(error: Exception) -> Exception:
    """Return an error of the same name and text, with escape sequences for what cannot be encoded."""
    kind = type(error)
    if not isinstance(error, PenstockError):
        # Others may take any arguments.
        kind = type(kind.__name__, (Exception,), {"__module__": kind.__module__})
    escaped = kind(storable(str(error)))
    for note in getattr(error, "__notes__", ()):
        escaped.add_note(storable(note))
    return escaped
