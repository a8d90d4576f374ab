"""Bodies of requests: read within limits of size and time, unpacked, decoded by their type."""

import asyncio
import zlib
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request

from penstock.errors import InvalidInput
from penstock.gateway.gateway import Limits
from penstock.gateway.problems import Refused
from penstock.gateway.route import JSON, Route

# A body that is too large is read to its end, if it has no more than so many times the limit: a connection that is
# closed with something unread is reset, and the caller would see that instead of the answer.
_READ_ON = 4


def media_of(request: Request, route: Route) -> str:
    """Return the type of a body; refuse one that the route does not take."""
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if not given or given == "application/x-www-form-urlencoded":
        # What curl says where nobody has said anything.
        return route.media[0]
    if given in route.media:
        return given
    if given.endswith("+json") and JSON in route.media:
        return JSON
    raise Refused(
        415,
        "unsupported_media_type",
        f"a body of type {given} is not understood here",
        f"Send Content-Type: {' or '.join(route.media)}.",
    )


async def read_body(request: Request, limits: Limits) -> bytes:
    """Read a body, within its limits, and unpack it where it is gzipped."""
    declared = request.headers.get("content-length", "")
    # Who expects to be told first has sent nothing yet.
    most = limits.body_bytes if "expect" in request.headers else _READ_ON * limits.body_bytes
    if declared.isdecimal() and int(declared) > most:
        raise _too_large(limits)
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(limits.body_seconds):
            async for part in request.stream():
                size += len(part)
                if size <= limits.body_bytes:
                    parts.append(part)
                    continue
                parts.clear()
                if size > _READ_ON * limits.body_bytes:
                    raise _too_large(limits)
    except TimeoutError:
        raise Refused(
            408,
            "body_timeout",
            f"the body did not arrive within {limits.body_seconds:g} s",
            "Send it faster, or in several requests.",
            {"Connection": "close"},
        ) from None
    except ClientDisconnect:
        raise Refused(400, "disconnected", "the caller went away while it sent the body", "Send it again.") from None
    if size > limits.body_bytes:
        raise _too_large(limits)
    body = b"".join(parts)
    match request.headers.get("content-encoding", "identity").strip().lower():
        case "identity" | "":
            return body
        case "gzip":
            return _unpacked(body, limits)
        case other:
            raise Refused(
                415, "unsupported_encoding", f"Content-Encoding {other} is not understood", "Send gzip, or nothing."
            )


def require_text(body: bytes) -> None:
    """Refuse JSON that is not UTF-8: parts that are decoded later, or stored as they are, would bring it along."""
    try:
        body.decode()
    except UnicodeDecodeError as error:
        raise InvalidInput(f"the body is not UTF-8: {error}") from None


def decode(body: bytes, kind: Any) -> Any:
    """Decode JSON by its type."""
    try:
        return msgspec.json.decode(body or b"{}", type=kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        cause = error.__cause__
        raise InvalidInput(f"the body is not as expected: {cause or error}") from None


def _unpacked(body: bytes, limits: Limits) -> bytes:
    """Return what is in a gzipped body: one member, or several end to end, which are one text."""
    members: list[bytes] = []
    left = limits.body_bytes
    while body or not members:
        unpacker = zlib.decompressobj(wbits=31)
        try:
            members.append(unpacker.decompress(body, left + 1))
        except zlib.error as error:
            raise InvalidInput(f"the body is not gzip: {error}") from None
        left -= len(members[-1])
        if left < 0:
            raise _too_large(limits)
        if not unpacker.eof:
            raise InvalidInput("the gzipped body ends too early")
        body = unpacker.unused_data
    return b"".join(members)


def _too_large(limits: Limits) -> Refused:
    return Refused(
        413,
        "request_too_large",
        f"a request may have {limits.body_bytes} bytes",
        "Send less in a request, or raise --max-body where the gateway is started.",
        {"Connection": "close"},
    )
