"""What a worker and its child processes say to each other: frames of MessagePack, each with its length before it."""

import struct
from collections.abc import Iterator

import msgspec

from penstock.broker.messages import StoredMessage
from penstock.workers.verdicts import Verdict

_LENGTH = struct.Struct("<I")


class Run(msgspec.Struct, tag=True):
    """To the child: handle these items, one after the other, but for those at some indexes, which were cancelled."""

    messages: list[StoredMessage]
    start: int
    ordered: bool
    skipped: list[int]


class Cancel(msgspec.Struct, tag=True):
    """To the child: the item at this index is cancelled."""

    index: int


class Halt(msgspec.Struct, tag=True):
    """To the child: end the run after the item that is being handled."""


class Answer(msgspec.Struct, tag=True):
    """To the child: the answer to what it asked, or why there is none."""

    value: msgspec.Raw
    # The class of the error, by its name in `penstock.errors`, and what it says.
    kind: str | None = None
    error: str = ""


class Ready(msgspec.Struct, tag=True):
    """From the child: it has loaded the app and can handle items."""


class Broken(msgspec.Struct, tag=True):
    """From the child: it cannot handle anything, and why."""

    error: str


class Did(msgspec.Struct, tag=True):
    """From the child: what came of an item."""

    index: int
    verdict: Verdict | None = None


class Halted(msgspec.Struct, tag=True):
    """From the child: the items from this index on are not handled."""

    index: int


class Ask(msgspec.Struct, tag=True):
    """From the child: what its handler wants to know or remember of its item."""

    what: str
    name: str | None = None
    value: bytes | None = None


class Progress(msgspec.Struct, tag=True):
    """From the child: how far its handler is."""

    percent: float | None
    text: str | None


ToChild = Run | Cancel | Halt | Answer
FromChild = Ready | Broken | Did | Halted | Ask | Progress

_encoder = msgspec.msgpack.Encoder()
_to_child = msgspec.msgpack.Decoder(ToChild)
_from_child = msgspec.msgpack.Decoder(FromChild)


def packed(frame: ToChild | FromChild) -> bytes:
    """Return the bytes of a frame."""
    body = _encoder.encode(frame)
    return _LENGTH.pack(len(body)) + body


class Frames:
    """Reads frames out of bytes as they come."""

    def __init__(self, *, from_child: bool) -> None:
        self._decode = (_from_child if from_child else _to_child).decode
        self._buffer = bytearray()

    def feed(self, data: bytes) -> "Iterator[ToChild | FromChild]":
        """Yield the frames that are complete."""
        self._buffer += data
        place = 0
        while len(self._buffer) - place >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer, place)
            stop = place + _LENGTH.size + length
            if len(self._buffer) < stop:
                break
            yield self._decode(bytes(self._buffer[place + _LENGTH.size : stop]))
            place = stop
        del self._buffer[:place]
