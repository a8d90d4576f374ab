"""Operations and their replies as bytes: msgpack, by the types that operations declare."""

import importlib
import inspect
import pkgutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar, get_args

import msgspec

import penstock.broker.operations
from penstock.broker.messages import PushResult
from penstock.broker.operations.claiming import Ack
from penstock.broker.operations.operation import Operation, Repeatable
from penstock.broker.operations.pushing import Push
from penstock.errors import InvalidInput

R = TypeVar("R")

# The name of the route for a transaction.
TOGETHER = "together"
MEDIA = "application/msgpack"
_encoder = msgspec.msgpack.Encoder()


class Together(msgspec.Struct, frozen=True):
    """Acknowledgements and pushes that take effect together, or not at all."""

    acks: Sequence[Ack] = ()
    pushes: Sequence[Push] = ()


_together = msgspec.msgpack.Decoder(Together)
_together_reply = msgspec.msgpack.Decoder(list[list[PushResult]])


@cache
def operations() -> dict[str, type[Operation[Any]]]:
    """Return all types of operation by name."""
    rooms = [
        importlib.import_module(f"penstock.broker.operations.{room.name}")
        for room in pkgutil.iter_modules(penstock.broker.operations.__path__)
    ]
    found = {kind.__name__: kind for room in rooms for _, kind in inspect.getmembers(room, inspect.isclass)}
    kinds = {name: kind for name, kind in found.items() if issubclass(kind, Operation)}
    return {name: kinds[name] for name in sorted(kinds) if kinds[name] not in (Operation, Repeatable)}


def reply_type(kind: type[Operation[Any]]) -> Any:
    """Return the type of the reply to operations of a type."""
    (base,) = kind.__orig_bases__  # type: ignore[attr-defined]
    (reply,) = get_args(base)
    return reply


def encode_operation(operation: Operation[Any]) -> bytes:
    """Write an operation."""
    try:
        return _encoder.encode(operation)
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        raise InvalidInput(f"{operation!r:.200} cannot be sent: {error}") from error


def decode_operation(kind: type[Operation[R]], sent: bytes) -> Operation[R]:
    """Read an operation of a type; raises InvalidInput."""
    with _refusing():
        found: Operation[R] = _operation_decoder(kind).decode(sent)
    return found


def encode_reply(reply: Any) -> bytes:
    """Write a reply."""
    return _encoder.encode(reply)


def decode_reply(kind: type[Operation[R]], sent: bytes) -> R:
    """Read the reply to an operation of a type."""
    reply: R = _reply_decoder(kind).decode(sent)
    return reply


def encode_together(together: Together) -> bytes:
    """Write a transaction."""
    return _encoder.encode(together)


def decode_together(sent: bytes) -> Together:
    """Read a transaction; raises InvalidInput."""
    with _refusing():
        return _together.decode(sent)


def decode_together_reply(sent: bytes) -> list[list[PushResult]]:
    """Read what came of the pushes of a transaction."""
    return _together_reply.decode(sent)


@contextmanager
def _refusing() -> Iterator[None]:
    try:
        yield
    except InvalidInput:
        raise
    except (msgspec.MsgspecError, UnicodeError, RecursionError, ValueError, TypeError) as error:
        # What the arguments' own checks refuse is chained to msgspec's error.
        cause = error.__cause__
        raise InvalidInput(str(cause if isinstance(cause, InvalidInput) else error)) from None


@cache
def _operation_decoder(kind: type[Operation[Any]]) -> "msgspec.msgpack.Decoder[Any]":
    return msgspec.msgpack.Decoder(kind)


@cache
def _reply_decoder(kind: type[Operation[Any]]) -> "msgspec.msgpack.Decoder[Any]":
    return msgspec.msgpack.Decoder(reply_type(kind))
