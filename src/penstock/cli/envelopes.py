"""A message as one line of JSON, the same for `read --json`, `pop --json` and `push --format envelope`.

A value that is JSON is in `value`, as it was written: numbers keep their digits, objects their order. Any other text is
in `value_text`, and what is not UTF-8 is in `value_base64`. A `value` of null is a null value; the text null, which is
JSON too, is in `value_text`. So a line says what the value was, and what was read can be pushed again. Only white space
around a JSON value is lost, and line breaks within become spaces.
"""

from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec

from penstock.broker.messages import Message, StoredMessage
from penstock.errors import InvalidInput

if TYPE_CHECKING:
    from penstock.broker.claims import Claim

_ONE_LINE = bytes.maketrans(b"\r\n", b"  ")
_NULL = b"null"


class Envelope(msgspec.Struct):
    """A stored message, as it is printed; one that a group delivers has its attempt, and one that is held its lease."""

    queue: str
    partition: str
    offset: int
    id: UUID
    timestamp: datetime
    key: str | None = None
    headers: dict[str, str] | None = None
    attempt: int | msgspec.UnsetType = msgspec.UNSET
    lease_id: UUID | msgspec.UnsetType = msgspec.UNSET
    lease_until: datetime | msgspec.UnsetType = msgspec.UNSET
    value: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    value_text: str | msgspec.UnsetType = msgspec.UNSET
    value_base64: bytes | msgspec.UnsetType = msgspec.UNSET


class Letter(msgspec.Struct):
    """What of an envelope can be pushed; the rest is not looked at."""

    value: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    value_text: str | msgspec.UnsetType = msgspec.UNSET
    value_base64: bytes | msgspec.UnsetType = msgspec.UNSET
    key: str | None = None
    headers: dict[str, str] | None = None
    partition: str | None = None
    dedupe_id: str | None = None

    def content(self) -> bytes | None:
        """Return the bytes of the value, or None where it is null."""
        match self.value, self.value_text, self.value_base64:
            case (msgspec.Raw() as raw, msgspec.UNSET, msgspec.UNSET):
                return None if bytes(raw) == _NULL else bytes(raw)
            case (msgspec.UNSET, str() as text, msgspec.UNSET):
                return text.encode()
            case (msgspec.UNSET, msgspec.UNSET, bytes() as content):
                return content
            case _:
                raise InvalidInput("it must have one of value, value_text and value_base64")


_encoder = msgspec.json.Encoder()
_letters = msgspec.json.Decoder(Letter)
_any_json = msgspec.json.Decoder(msgspec.Raw)


def write(message: StoredMessage, held: "Claim | None" = None) -> bytes:
    """Return a message as a line, with the lease under which it is held."""
    envelope = Envelope(
        message.queue,
        message.partition,
        message.offset,
        message.id,
        message.timestamp,
        message.key,
        message.headers,
        message.attempt or msgspec.UNSET,
        **value_of(message.value),
    )
    if held is not None:
        envelope.lease_id = held.lease_id or msgspec.UNSET
        envelope.lease_until = held.lease_until or msgspec.UNSET
    return _encoder.encode(envelope) + b"\n"


def value_of(content: bytes | None) -> dict[str, Any]:
    """Return a value under the name that says what it was: value, value_text or value_base64."""
    if content is None:
        return {"value": msgspec.Raw(_NULL)}
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return {"value_base64": content}
    try:
        value = bytes(_any_json.decode(content))
    except (msgspec.DecodeError, RecursionError):
        return {"value_text": text}
    return {"value_text": text} if value == _NULL else {"value": msgspec.Raw(value.translate(_ONE_LINE))}


def text_of(content: bytes | None) -> str:
    """Return a value as people read it; a null value, as Kafka's tools do, as `null`."""
    return "null" if content is None else content.decode(errors="replace")


def read(line: bytes) -> Message:
    """Return the message that a line stands for."""
    try:
        letter = _letters.decode(line)
        return Message(letter.content(), letter.key, letter.headers, letter.partition, letter.dedupe_id)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise InvalidInput(f"it is not an envelope: {error}") from None


def require_json(line: bytes) -> Message:
    """Return a message of a line that must be JSON; it is stored as it is written."""
    try:
        line.decode()
        return Message(bytes(_any_json.decode(line)))
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise InvalidInput(f"it is not JSON: {error}") from None
