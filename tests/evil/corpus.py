"""What nobody should send and somebody will: one corpus for every way in.

Each entry has a name that says what it is, for the test's report.
"""

import sys
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

MIB = 1 << 20

TEXTS: dict[str, str] = {
    "empty": "",
    "a space": " ",
    "only whitespace": " \t\n\r\v\f",
    "a NUL": "a\0b",
    "control characters": "\x01\x07\x1b[31m\x7f",
    "next line": "a\x85b",
    "line separator": "a\u2028b\u2029c",
    "a byte order mark": "\ufeffa",
    "zero width": "a\u200bb\u2060c\u00adb",
    "right to left": "\u202eabc\u202c عربى עברית",
    "combining": "e\u0301 é Å Å ﬁ",
    "private use": "\ue000\U000f0000",
    "not a character": "\uffff\ufffe\U0010ffff",
    "the last plane": "\U0010fffd",
    "emoji": "👩‍👩‍👧‍👦🏳️‍🌈",
    "the first half of a surrogate pair": "\ud800",
    "the second half of a surrogate pair": "a\udfffb",
    "a surrogate pair in two": "\ud83d\ude00",
    "a byte that was no UTF-8": b"\xff".decode("utf-8", "surrogateescape"),
    "a quote": "'; DROP TABLE penstock.queues; --",
    "a dollar quote": "$$ SELECT 1 $$",
    "a double quote": '"a""b"',
    "a backslash": "\\x00 \\u0000 E'\\n'",
    "a format": "%s %(a)s {} {0} ${a}",
    "a placeholder": "$1 ? :name",
    "a glob": "*",
    "a lane": "~redrive/1",
    "a path": "../../etc/passwd",
    "an option": "--help",
    "a null": "null",
    "a number": "1e400",
    "JSON": '{"a": [1, null]}',
    "255 bytes": "x" * 255,
    "256 bytes": "x" * 256,
    "255 bytes in fewer characters": "ü" * 127 + "x",
    "very long": "long " * 20_000,
    "a comma and an equals sign": "a=b,c=d",
    "tabs and lines": "a\tb\nc\r\nd",
}

BYTES: dict[str, bytes] = {
    "empty": b"",
    "a NUL": b"\0",
    "all bytes": bytes(range(256)),
    "not UTF-8": b"\xff\xfe\xfd",
    "a broken sequence": "ü".encode()[:1],
    "an overlong NUL": b"\xc0\x80",
    "a surrogate in UTF-8": b"\xed\xa0\x80",
    "beyond Unicode": b"\xf4\x90\x80\x80",
    "UTF-16": "a".encode("utf-16"),
    "the end of a COPY": b"\\.\n",
    "an escape of bytea": b"\\x00",
    "gzip": b"\x1f\x8b\x08\0\0\0\0\0",
    "a null": b"null",
    "one byte less than 1 MiB": b"x" * (MIB - 1),
    "1 MiB": b"x" * MIB,
    "one byte more than 1 MiB": b"x" * (MIB + 1),
}

# As text: no parser agrees with another about some of these.
JSON_TEXTS: dict[str, bytes] = {
    "nested 2,000 deep": b"[" * 2_000 + b"]" * 2_000,
    "nested 100,000 deep": b"[" * 100_000 + b"]" * 100_000,
    "objects 2,000 deep": b'{"a":' * 2_000 + b"1" + b"}" * 2_000,
    "NaN": b"NaN",
    "an infinity": b'{"a": -Infinity}',
    "a huge number": b"1" + b"0" * 5_000,
    "a huge exponent": b"1e100000",
    "a number over 64 bits": b"18446744073709551616",
    "a double key": b'{"a": 1, "a": 2}',
    "an escaped NUL": b'{"a": "\\u0000"}',
    "an escaped half pair": b'"\\ud800"',
    "a raw control character": b'"a\x01b"',
    "a comment": b"1 // one",
    "two values": b"1 2",
    "a byte order mark": b"\xef\xbb\xbf1",
    "cut off": b'{"a": ',
    "empty keys": b'{"": {"": ""}}',
}


def nested(depth: int) -> list[Any]:
    """Return lists within lists."""
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


# As Python has it.
JSON_VALUES: dict[str, Any] = {
    "not a number": float("nan"),
    "an infinity within": {"a": [float("inf")]},
    "minus zero": -0.0,
    "the smallest float": 5e-324,
    "the largest float": sys.float_info.max,
    "a number over 64 bits": 1 << 64,
    "a number of 5,000 digits": 10**5_000,
    "a negative number over 64 bits": -(1 << 63) - 1,
    "nested 500 deep": nested(500),
    "nested 2,000 deep": nested(2_000),
    "nested 100,000 deep": nested(100_000),
    "a NUL": {"a\0": "\0"},
    "half a surrogate pair": {"a": "\ud800"},
    "half a surrogate pair as a key": {"\udfff": 1},
    "a key that is a number": {1: 2},
    "a key that is nothing": {None: 1},
    "empty keys": {"": {"": None}},
    "emoji": ["👩‍👩‍👧‍👦"],
    "a set": {1, 2},
    "an object": object(),
    "a function": nested,
    "nothing": None,
}

BERLIN = ZoneInfo("Europe/Berlin")
TIMES: dict[str, datetime] = {
    "the first one": datetime.min.replace(tzinfo=UTC),
    "before the first one": datetime.min.replace(tzinfo=timezone(timedelta(hours=14))),
    "the last one": datetime.max.replace(tzinfo=UTC),
    "after the last one": datetime.max.replace(tzinfo=timezone(timedelta(hours=-12))),
    "the epoch": datetime(1970, 1, 1, tzinfo=UTC),
    "before the epoch": datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
    "far ahead": datetime(9000, 1, 1, tzinfo=UTC),
    "an hour that there is twice": datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=BERLIN),
    "an hour that there is not": datetime(2026, 3, 29, 2, 30, tzinfo=BERLIN),
    "an odd zone": datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=5, minutes=53, seconds=28))),
    "without a zone": datetime(2026, 1, 1),
}
TIME_TEXTS: dict[str, str] = {
    "the end of time": "infinity",
    "the beginning of time": "-infinity",
    "before Christ": "0044-03-15 BC",
    "the year 10000": "10000-01-01T00:00:00Z",
    "the year 300000": "300000-01-01T00:00:00Z",
    "a leap second": "2016-12-31T23:59:60Z",
    "the 30th of February": "2026-02-30",
    "hour 25": "2026-01-01T25:00:00Z",
    "a word": "tomorrow",
    "nothing": "",
}

NUMBERS: dict[str, float] = {
    "zero": 0,
    "minus one": -1,
    "a fraction": 0.5,
    "2 to the 31": 1 << 31,
    "2 to the 63": 1 << 63,
    "less than 64 bits hold": -(1 << 63) - 1,
    "2 to the 100": 1 << 100,
    "not a number": float("nan"),
    "an infinity": float("inf"),
    "a negative infinity": float("-inf"),
    "the largest float": sys.float_info.max,
    "the smallest float": 5e-324,
}
