"""Runs hot calls on a connection the short way.

A cursor of psycopg finds out anew, each time, how the parameters of a statement are written, whether it is prepared and
how its columns are read. That is half of what a push costs its client. Here a connection remembers it for the few
statements that come again and again; what psycopg knows of types, of waiting and of errors stays psycopg's.
"""

from collections import Counter
from collections.abc import Sequence
from functools import cache, cached_property
from itertools import count
from typing import Any

import psycopg
from psycopg import generators
from psycopg.abc import PQGen
from psycopg.adapt import PyFormat, Transformer
from psycopg.pq import ExecStatus, Format, TransactionStatus
from psycopg.pq.abc import PGresult

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
        dumped = adapting.dump_sequence(parameters, [PyFormat.AUTO] * len(parameters))
        key = (sql, adapting.types)
        name = self._names.get(key)
        if name is None and self._worthwhile(key):
            name = yield from self._prepare(key)
        if name is None:
            self._pgconn.send_query_params(_numbered(sql), dumped, adapting.types, adapting.formats, Format.BINARY)
        else:
            self._pgconn.send_query_prepared(name, dumped, adapting.formats, Format.BINARY)
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

    @cached_property
    def wire(self) -> Wire:
        """What it remembers."""
        return Wire(self)


class AsyncConnection(psycopg.AsyncConnection[Any]):
    """The asynchronous twin."""

    @cached_property
    def wire(self) -> Wire:
        """What it remembers."""
        return Wire(self)


@cache
def _numbered(sql: str) -> bytes:
    """Write `$1`, `$2` … for each `%s`."""
    first, *rest = sql.split("%s")
    return (first + "".join(f"${number}{part}" for number, part in enumerate(rest, 1))).encode()
