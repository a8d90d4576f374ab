"""Signs the errors of the source and of the sink, so that the supervisor of a query can tell them from all others.

Across Spark's processes an exception is a text, and so is what a user's function raises, which may quote a message word
for word. A decision is taken only on lines that begin with a sign: a random text that is made when the query starts
and that only the options of its source and its sink have.

The text must be one that UTF-8 can encode: PySpark cannot send any other, and Spark would wait for it for ever. What
cannot be encoded is escaped. Workers that run users' functions have `penstock.spark.daemon` for this; those that plan
a query are started by PySpark's own daemon, whatever the session says.
"""

import re
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from secrets import token_hex
from typing import Any, NamedTuple, TypeVar

from penstock import errors
from penstock.broker.arguments import storable
from penstock.errors import PenstockError

# What Spark calls of a data source, and of a reader or a writer, and where something can be refused.
_CALLED = (
    *("schema", "reader", "streamReader", "writer", "streamWriter"),
    *("prepareForTriggerAvailableNow", "latestOffset", "reportLatestOffset", "partitions", "read"),
    *("write", "commit", "abort"),
)

# The local property of Spark by which a thread asks the Python workers of its jobs where they fail.
SIGN_PROPERTY = "penstock.failedPartitionSign"

T = TypeVar("T")


def new_sign() -> str:
    """Return a random sign."""
    return f"penstock-{token_hex(16)}"


class SignedError(NamedTuple):
    """What penstock's source or sink raised: the class, and the first line of the text."""

    kind: type[PenstockError]
    text: str

    def __str__(self) -> str:
        return f"{self.kind.__name__}: {self.text}"


def signed_error(text: str, sign: str | None) -> SignedError | None:
    """Return the signed error in what Spark says of a failure, or None where there is none."""
    found = None if sign is None else re.search(rf"{re.escape(sign)} (\w+): (.*)", text)
    return None if found is None else SignedError(getattr(errors, found[1], PenstockError), found[2].strip())


def failed_partition(text: str, sign: str) -> int | None:
    """Return the number of the partition that a Python worker failed at, if it said so."""
    found = re.search(rf"^{re.escape(sign)} ([0-9]{{1,9}})$", text, re.MULTILINE)
    return None if found is None else int(found[1])


def signs_errors(kind: type[T]) -> type[T]:
    """Let a data source, a reader or a writer sign penstock's errors; it has `options`."""
    for name in _CALLED:
        if name in vars(kind):
            setattr(kind, name, _signed(vars(kind)[name]))
    return kind


def _signed(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        sign = _sign_of(self.options)
        with signing(sign):
            result = function(self, *arguments, **named)
        return _each(sign, result) if isinstance(result, Iterator) else result

    return call


def _sign_of(options: Any) -> str | None:
    if isinstance(options, Mapping):
        # Those of a data source, as they were given.
        return next((value for name, value in options.items() if name.lower() == "errorsign"), None)
    sign: str | None = options.target.sign
    return sign


def _each(sign: str | None, items: Iterator[Any]) -> Iterator[Any]:
    with signing(sign):
        yield from items


@contextmanager
def signing(sign: str | None) -> Iterator[None]:
    """Sign penstock's errors, and escape what PySpark cannot send of any error."""
    with _escaping():
        try:
            yield
        except PenstockError as error:
            if sign is not None:
                lines = str(error).splitlines() or [""]
                error.add_note(f"{sign} {public_name(error)}: {lines[0]}")
            raise


def public_name(error: PenstockError) -> str:
    """Return the name of the nearest class in `penstock.errors` that takes a text."""
    public = (kind for kind in type(error).__mro__ if kind.__module__ == errors.__name__)
    return next(kind.__name__ for kind in public if kind is not errors.MissingExtra)


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
