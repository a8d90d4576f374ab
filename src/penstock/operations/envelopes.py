"""Envelopes: a message as one line of JSON, as `read --json` prints and `push --format envelope` reads it.

A JSON value is in `value` as it was written: numbers keep their digits, objects their order. Other text is in
`value_text`, and what is not UTF-8 in `value_base64`. `"value": null` is a null value; the four bytes `null`, which are
JSON too, are in `value_text`. So an envelope can be pushed again without loss, except that white space around a JSON
value is dropped and line breaks in it become spaces.
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
    """A stored message; with its attempt if a group delivered it, and its lease if it is still held."""

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


class PushedEnvelope(msgspec.Struct):
    """The fields of an envelope that a push uses; others are ignored."""

    value: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    value_text: str | msgspec.UnsetType = msgspec.UNSET
    value_base64: bytes | msgspec.UnsetType = msgspec.UNSET
    key: str | None = None
    headers: dict[str, str] | None = None
    partition: str | None = None
    dedupe_id: str | None = None

    def content(self) -> bytes | None:
        """Return the bytes of the value, or None for a null value."""
        match self.value, self.value_text, self.value_base64:
            case (msgspec.Raw() as raw, msgspec.UNSET, msgspec.UNSET):
                return None if bytes(raw) == _NULL else bytes(raw)
            case (msgspec.UNSET, str() as text, msgspec.UNSET):
                return text.encode()
            case (msgspec.UNSET, msgspec.UNSET, bytes() as content):
                return content
            case _:
                raise InvalidInput("an envelope needs exactly one of value, value_text and value_base64")


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(PushedEnvelope)
_any_json = msgspec.json.Decoder(msgspec.Raw)


def write(message: StoredMessage, held: "Claim | None" = None) -> bytes:
    """Return a message as a line; with the lease of the claim that holds it, if given."""
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
    """Return a value under the field for its kind: value, value_text or value_base64."""
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
    """Return a value as readable text; a null value is `null`, as in Kafka's tools."""
    return "null" if content is None else content.decode(errors="replace")


def read(line: bytes) -> Message:
    """Return the message that an envelope describes."""
    try:
        found = _decoder.decode(line)
        return Message(found.content(), found.key, found.headers, found.partition, found.dedupe_id)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise InvalidInput(f"not an envelope: {error}") from None


def require_json(line: bytes) -> Message:
    """Return a message whose value is this line, which must be JSON."""
    try:
        line.decode()
        return Message(bytes(_any_json.decode(line)))
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise InvalidInput(f"not JSON: {error}") from None
