"""What is kept and logged of an exception that a user's code raised."""

import traceback
from types import TracebackType

from penstock.broker.messages import StoredMessage

# What is kept of an error, and of its traceback: of that the end, where it happened.
_ERROR_CHARACTERS = 2000
_TRACEBACK_CHARACTERS = 8000


def describe(error: BaseException) -> str:
    """Return what an operator should read of an error; what it raises itself when it is asked does no harm."""
    try:
        said = str(error)
    except BaseException as second:
        said = f"(its text cannot be had: {type(second).__name__})"
    return f"{type(error).__name__}: {said}"[:_ERROR_CHARACTERS]


def trace_of(error: BaseException) -> str | None:
    """Return the traceback of an error, or the end of a long one; None for an error that was never raised."""
    trace = _traceback(error)
    if trace is None:
        return None
    try:
        lines = "".join(traceback.format_exception(type(error), error, trace))
    except BaseException:
        lines = "".join(traceback.format_tb(trace))
    return lines if len(lines) <= _TRACEBACK_CHARACTERS else f"…\n{lines[-_TRACEBACK_CHARACTERS:]}"


def logged(error: BaseException) -> tuple[type[BaseException], BaseException, TracebackType | None]:
    """Return an error as a log takes it; one that cannot be written is replaced by what can be said of it."""
    trace = _traceback(error)
    try:
        traceback.format_exception(type(error), error, trace)
    except BaseException:
        return RuntimeError, RuntimeError(describe(error)), trace
    return type(error), error, trace


def _traceback(error: BaseException) -> TracebackType | None:
    # Not by asking the error, which may have a `__getattribute__` of its own.
    found: TracebackType | None = BaseException.__dict__["__traceback__"].__get__(error)
    return found


def name_of(message: StoredMessage) -> str:
    """Name a message in a log."""
    return f"message {message.offset} of {message.queue}/{message.partition}"
