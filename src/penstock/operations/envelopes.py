"""Envelopes: a message as one line of JSON, as `read --json` prints and `push --format envelope` reads it.

A JSON value is in `value` as it was written: numbers keep their digits, objects their order. Other text is in
`value_text`, and what is not UTF-8 in `value_base64`. `"value": null` is a null value; the four bytes `null`, which are
JSON too, are in `value_text`. So an envelope can be pushed again without loss, except that white space around a JSON
value is dropped and line breaks in it become spaces. `traceId` is that of the header `traceId`, or the one in
`traceparent`; given at a push it becomes the header.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec

from penstock.broker.messages import Message, StoredMessage
from penstock.errors import InvalidInput
from penstock.tracing import TRACE_ID, TRACEPARENT

if TYPE_CHECKING:
    from penstock.broker.claims import Claim

_ONE_LINE = bytes.maketrans(b"\r\n", b"  ")
_NULL = b"null"
_TRACE_DIGITS = 32


class Envelope(msgspec.Struct):
    """A stored message; with its attempt if a group delivered it, and its lease if it is still held.

    `traceId` is that of the trace which it belongs to, where its headers name one.
    """

    queue: str
    partition: str
    offset: int
    id: UUID
    timestamp: datetime
    key: str | None = None
    headers: dict[str, str] | None = None
    attempt: int | msgspec.UnsetType = msgspec.UNSET
    trace_id: str | msgspec.UnsetType = msgspec.field(default=msgspec.UNSET, name="traceId")
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
    unique_key: str | None = None
    trace_id: str | None = msgspec.field(default=None, name="traceId")

    def all_headers(self) -> dict[str, str] | None:
        """Return the headers, with the trace id that was given beside them."""
        if self.trace_id is None:
            return self.headers
        known = (self.headers or {}).get(TRACE_ID, self.trace_id)
        if not self.trace_id or known != self.trace_id:
            raise InvalidInput(f"traceId is {self.trace_id!r:.100}, and the header {TRACE_ID} is {known!r:.100}")
        return {**(self.headers or {}), TRACE_ID: self.trace_id}

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
        trace_of(message.headers),
        **value_of(message.value),
    )
    if held is not None:
        envelope.lease_id = held.lease_id or msgspec.UNSET
        envelope.lease_until = held.lease_until or msgspec.UNSET
    return _encoder.encode(envelope) + b"\n"


def trace_of(headers: Mapping[str, str] | None) -> str | msgspec.UnsetType:
    """Return the id of the trace that headers name."""
    if not headers:
        return msgspec.UNSET
    given = headers.get(TRACE_ID)
    if given is not None:
        return given
    # version-trace-parent-flags
    parts = headers.get(TRACEPARENT, "").split("-")
    return parts[1] if len(parts) >= 4 and len(parts[1]) == _TRACE_DIGITS else msgspec.UNSET


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
        headers = found.all_headers()
        return Message(found.content(), found.key, headers, found.partition, found.dedupe_id, found.unique_key)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise InvalidInput(f"not an envelope: {error}") from None


def require_json(line: bytes) -> Message:
    """Return a message whose value is this line, which must be JSON."""
    try:
        line.decode()
        return Message(bytes(_any_json.decode(line)))
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise InvalidInput(f"not JSON: {error}") from None
