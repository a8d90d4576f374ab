"""Keys and headers as bytes: what is wrong with them, and what is shown of those that cannot be read.

Every way in refuses bytes that SQL could not show as text or jsonb. Readers take any bytes all the same, since older
versions stored them, and show the rest in PostgreSQL's escape format, exactly as the SQL functions do.
"""

import msgspec

# The one header of a message whose headers cannot be read: their bytes in the escape format.
UNDECODED = "penstock-undecoded"

_headers_decoder = msgspec.json.Decoder(dict[str, str])


def key_problem(packed: bytes) -> str | None:
    """Say what is wrong with the bytes of a key; None for a good one."""
    if not packed:
        return "it is empty"
    if b"\0" in packed:
        return "it holds a NUL, which PostgreSQL's text cannot"
    try:
        packed.decode()
    except UnicodeDecodeError:
        return "it is not UTF-8"
    return None


def headers_problem(packed: bytes) -> str | None:
    """Say what is wrong with the bytes of a message's headers, JSON that is not parsed yet; None for good ones."""
    try:
        headers = _headers_decoder.decode(packed)
    except UnicodeDecodeError:
        return "they are not UTF-8"
    except msgspec.ValidationError:
        return "they are not an object of texts"
    except (msgspec.DecodeError, RecursionError):
        return "they are not JSON"
    if any("\0" in text for pair in headers.items() for text in pair):
        return "they hold a NUL, which PostgreSQL's jsonb cannot"
    return None


def decode_key(packed: bytes) -> str | None:
    """Read a key out of its bytes, or show them; nothing is no key."""
    if not packed:
        return None
    return packed.decode() if key_problem(packed) is None else escaped(packed)


def decode_headers(packed: bytes) -> dict[str, str] | None:
    """Read a message's headers out of their bytes, or show them; nothing is none."""
    if not packed:
        return None
    return _headers_decoder.decode(packed) if headers_problem(packed) is None else {UNDECODED: escaped(packed)}


def escaped(packed: bytes) -> str:
    """Write bytes in PostgreSQL's escape format: `decode(…, 'escape')` returns them."""
    return "".join(map(_ESCAPED.__getitem__, packed))


_ESCAPED = ["\\\\" if byte == 0x5C else chr(byte) if 0 < byte < 0x80 else f"\\{byte:03o}" for byte in range(256)]
