"""Runs hot calls on a connection the short way.

A cursor of psycopg finds out anew, each time, how the parameters of a statement are written, whether it is prepared and
how its columns are read. That is half of what a push costs its client. Here a connection remembers it for the few
statements that come again and again. Where each parameter has a cast, that says how it is written; all else that
psycopg knows of types, of waiting and of errors stays psycopg's.
"""

import re
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache, cached_property
from itertools import count
from typing import Any, NamedTuple, Self

import psycopg
from psycopg import generators
from psycopg.abc import PQGen
from psycopg.adapt import PyFormat, Transformer
from psycopg.pq import ExecStatus, Format, TransactionStatus
from psycopg.pq.abc import PGresult

from penstock import forks

_AnyConnection = psycopg.Connection[Any] | psycopg.AsyncConnection[Any]
# A statement and the types of its parameters.
_Key = tuple[str, Sequence[int] | None]
_IDLE = TransactionStatus.IDLE
_ANSWERED = (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK)


class Wire:
    """What one connection remembers. Use it under the connection's lock, as its cursors do."""

    def __init__(self, connection: _AnyConnection) -> None:
        self._pgconn = connection.pgconn
        self._threshold = connection.prepare_threshold
        self._encoding = connection.info.encoding
        self._utf8 = self._encoding == "utf-8"
        self._adapting = Transformer.from_context(connection)
        self._names: dict[_Key, bytes] = {}
        self._seen: Counter[_Key] = Counter()
        self._numbers = count()

    @property
    def fits(self) -> bool:
        """Whether a call may go this way: not where nothing is prepared, and not amid a transaction."""
        return self._threshold is not None and self._pgconn.transaction_status == _IDLE

    def run(self, sql: str, parameters: Sequence[Any]) -> PQGen[list[tuple[Any, ...]]]:
        """Run a statement that returns rows; drive it with the connection's `wait`."""
        adapting = self._adapting
        types: Sequence[int] | None
        formats: Sequence[Format] | None
        dumped: Sequence[Any]
        declared = _declared(sql) if self._utf8 else None
        try:
            if declared is None:
                raise TypeError
            types, formats = declared.types, declared.formats
            dumped = [
                None if value is None else write(value)
                for write, value in zip(declared.writers, parameters, strict=True)
            ]
        except (TypeError, ValueError, AttributeError, struct.error):
            # Values of other types than most: psycopg knows how they are written, or what is wrong with them.
            dumped = adapting.dump_sequence(parameters, [PyFormat.AUTO] * len(parameters))
            types, formats = adapting.types, adapting.formats
        key = (sql, types)
        name = self._names.get(key)
        if name is None and self._worthwhile(key):
            name = yield from self._prepare(key)
        if name is None:
            self._pgconn.send_query_params(_numbered(sql), dumped, types, formats, Format.BINARY)
        else:
            self._pgconn.send_query_prepared(name, dumped, formats, Format.BINARY)
        try:
            result = yield from self._answer()
        except psycopg.errors.InvalidSqlStatementName:
            # Whoever had the connection before us told the server to forget.
            self._names.clear()
            return (yield from self.run(sql, parameters))
        adapting.set_pgresult(result)
        rows = adapting.load_rows(0, result.ntuples, tuple)
        adapting.set_pgresult(None)
        return rows

    def _worthwhile(self, key: _Key) -> bool:
        """Say whether a statement has come so often that it is prepared, which costs a round trip."""
        self._seen[key] += 1
        return self._threshold is not None and self._seen[key] > self._threshold

    def _prepare(self, key: _Key) -> PQGen[bytes]:
        sql, types = key
        name = f"penstock_{next(self._numbers)}".encode()
        self._pgconn.send_prepare(name, _numbered(sql), types)
        yield from self._answer()
        self._names[key] = name
        return name

    def _answer(self) -> PQGen[PGresult]:
        result: PGresult
        *_, result = yield from generators.execute(self._pgconn)
        if result.status not in _ANSWERED:
            raise psycopg.errors.error_from_result(result, self._encoding)
        return result


class Connection(psycopg.Connection[Any]):
    """A connection with a wire."""

    @classmethod
    def connect(cls, *arguments: Any, **options: Any) -> Self:
        """Open a connection that a process forked from this one lets go of."""
        with forks.opening():
            connection = super().connect(*arguments, **options)
            forks.opened(connection)
        return connection

    @cached_property
    def wire(self) -> Wire:
        """What it remembers."""
        return Wire(self)


class AsyncConnection(psycopg.AsyncConnection[Any]):
    """The asynchronous twin."""

    @classmethod
    async def connect(cls, *arguments: Any, **options: Any) -> Self:
        """Open a connection that a process forked from this one lets go of."""
        with forks.opening():
            connection = await super().connect(*arguments, **options)
            forks.opened(connection)
        return connection

    @cached_property
    def wire(self) -> Wire:
        """What it remembers."""
        return Wire(self)


@cache
def _numbered(sql: str) -> bytes:
    """Write `$1`, `$2` … for each `%s`."""
    first, *rest = sql.split("%s")
    return (first + "".join(f"${number}{part}" for number, part in enumerate(rest, 1))).encode()


class _Declared(NamedTuple):
    """The types of a statement's parameters, by their casts, and how a value of each is written."""

    types: tuple[int, ...]
    formats: list[Format]
    writers: list[Callable[[Any], Any]]


_CAST = re.compile(r"::(\w+(?:\[\])?)")


@cache
def _declared(sql: str) -> _Declared | None:
    """Read the casts of a statement's parameters; None where one has none, or is of a type that is not known here."""
    kinds = []
    for part in sql.split("%s")[1:]:
        cast = _CAST.match(part)
        if cast is None or cast[1] not in _WRITERS:
            return None
        kinds.append(_WRITERS[cast[1]])
    return _Declared(tuple(oid for oid, _ in kinds), [Format.BINARY] * len(kinds), [write for _, write in kinds])


def _text(value: str) -> bytes:
    if "\0" in value:
        raise ValueError
    return value.encode()


def _bytea(value: Any) -> Any:
    if type(value) is not bytes:
        raise TypeError
    return value


def _boolean(value: Any) -> bytes:
    if type(value) is not bool:
        raise TypeError
    return b"\1" if value else b"\0"


def _uuid(value: Any) -> bytes:
    written: bytes = value.bytes
    return written


# Dimensions, whether there are nulls, the type, and of the one dimension its length and first index.
_HEADER = struct.Struct("!iiIii")
_NO_ELEMENTS = struct.Struct("!iiI")
_LENGTH = struct.Struct("!i")
_NULL = _LENGTH.pack(-1)


def _array(oid: int, write: Callable[[Any], bytes]) -> Callable[[list[Any]], bytes]:
    def write_array(values: list[Any]) -> bytes:
        if type(values) is not list:
            raise TypeError
        if not values:
            return _NO_ELEMENTS.pack(0, 0, oid)
        pieces = [_HEADER.pack(1, None in values, oid, len(values), 1)]
        for value in values:
            if value is None:
                pieces.append(_NULL)
            else:
                written = write(value)
                pieces += (_LENGTH.pack(len(written)), written)
        return b"".join(pieces)

    return write_array


_INTEGER, _BIGINT = struct.Struct("!i").pack, struct.Struct("!q").pack
_WRITERS: dict[str, tuple[int, Callable[[Any], Any]]] = {
    "boolean": (16, _boolean),
    "bytea": (17, _bytea),
    "bigint": (20, _BIGINT),
    "integer": (23, _INTEGER),
    "text": (25, _text),
    "float8": (701, struct.Struct("!d").pack),
    "uuid": (2950, _uuid),
    "integer[]": (1007, _array(23, _INTEGER)),
    "bigint[]": (1016, _array(20, _BIGINT)),
    "uuid[]": (2951, _array(2950, _uuid)),
}
