"""What a rollback to a savepoint takes back.

A transaction's pushes are gathered here, in the client, and so is what is known of its batches. A `ROLLBACK TO
SAVEPOINT` goes to the server, by whatever way the caller likes, and nobody tells us. But it undoes settings, too:
before a statement that might end or begin a savepoint, the numbers of what was done until then are added to a setting
of the transaction (`penstock.marks`), and at the end of the block those that are still there were not undone.

A block begins with a mark of its own. If that is gone at the end, the settings were reset, or the rollback went to a
savepoint from before the block: then nobody knows what was undone, which is refused. So is a transaction that was ended
within the block, by whatever way: it is told from the next one by the time when it began.

Each driver has its own way to come before such a statement. SQLAlchemy and Django tell what they are about to run, so
a block without savepoints costs nothing more. psycopg does not, and gets a mark before any statement that follows a
push. psycopg2 cannot be watched: each push is marked at once. asyncpg tells only afterwards what it has run, so
there savepoints are followed by their names. And a session of SQLAlchemy has nested transactions that never come to the
database.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import count
from typing import Any

from penstock.errors import PenstockError
from penstock.postgres.failures import sqlstate_of
from penstock.postgres.statements.call import Call

Undo = Callable[[], None]
# Of one process, as several transactions may mark one connection.
_NUMBERS = count(1)
_MAY_UNDO = re.compile(r"\b(savepoint|rollback|release)\b", re.IGNORECASE)
_COMMAND = re.compile(
    r"\s*(?P<verb>SAVEPOINT|RELEASE|ROLLBACK)(?:\s+(?:WORK|TRANSACTION))?(?:\s+TO)?(?:\s+SAVEPOINT)?"
    r'\s+(?P<name>"(?:[^"]|"")+"|[\w$]+)\s*',
    re.IGNORECASE,
)
# What has to be told apart to find where statements end: comments and quoted texts.
_TOKEN = re.compile(
    r"""--[^\n]*|/\*|\*/|\b[eE]'(?:[^'\\]|\\.|'')*'|'(?:[^']|'')*'|"(?:[^"]|"")*"|\$(?P<tag>\w*)\$.*?\$(?P=tag)\$|;""",
    re.DOTALL,
)
_ABORTED = "25P02"


class Effects:
    """What was done in one transaction that only this process knows of, and how to undo it here."""

    def __init__(self) -> None:
        self._undo: dict[int, Undo] = {}
        # When the transaction began, by the server's clock: that tells it from the next one.
        self._began: str | None = None
        self._ended = False
        # The mark that the block itself began with, where there is one.
        self._base: int | None = None
        self._unmarked: list[int] = []
        self._marked = False
        self._watched = True
        # What to do as soon as something is noted, where statements cannot be watched.
        self.noted: Callable[[], None] | None = None
        self.followed: Followed | None = None
        self.nested: Nested | None = None

    def note(self, undo: Undo) -> None:
        """Take note of something that a rollback to a savepoint would undo."""
        number = next(_NUMBERS)
        self._undo[number] = undo
        if self.nested is not None:
            self.nested.note(number)
        if self.followed is not None:
            self.followed.note(number)
            return
        self._unmarked.append(number)
        if self.noted is not None:
            self.noted()

    def begin(self) -> Call[None]:
        """Return the call that marks the beginning of the block."""
        self._base = next(_NUMBERS)
        return self._marking([self._base])

    def begin_later(self) -> None:
        """Let the beginning be marked before the caller's first statement."""
        self._base = next(_NUMBERS)
        self._unmarked.append(self._base)

    def mark(self) -> Call[None] | None:
        """Return the call that marks what was done since the last one, or None."""
        if not self._unmarked or not self._watched:
            return None
        numbers = list(self._unmarked)
        self._unmarked.clear()
        self._marked = True
        return self._marking(numbers)

    def _marking(self, numbers: list[int]) -> Call[None]:
        def parse(rows: Any) -> None:
            self._is_of(rows[0][0])

        # Functions of PostgreSQL only, so that it does not depend on the version of our schema.
        return Call(
            "SELECT extract(epoch FROM pg_catalog.now())::text, pg_catalog.set_config('penstock.marks', "
            "pg_catalog.concat_ws(',', nullif(pg_catalog.current_setting('penstock.marks', true), ''), %s::text), "
            "true)",
            (",".join(map(str, numbers)),),
            parse,
        )

    @contextmanager
    def unwatched(self) -> Iterator[None]:
        """Surround a statement of our own, which leaves savepoints alone: no mark is needed before it."""
        self._watched = False
        try:
            yield
        finally:
            self._watched = True

    def ask(self) -> Call[None] | None:
        """Return the call that finds out what was undone, and undoes it here; None when nothing can have been."""
        if not self._undo or not (self._marked or self._began is not None):
            return None

        def parse(rows: Any) -> None:
            began, marks = rows[0]
            self._is_of(began)
            if self._ended:
                raise PenstockError(
                    "the transaction was committed or rolled back inside the block, and nobody knows what became of "
                    "its pushes: end it after the block"
                )
            kept = {int(number) for number in (marks or "").split(",") if number.isdecimal()}
            kept.update(self._unmarked)
            if self._base is not None and self._base not in kept:
                raise PenstockError(
                    "inside the block the settings were reset (RESET ALL, or penstock.marks), or the transaction was "
                    "rolled back to a savepoint from before the block, and nobody knows what became of its pushes: do "
                    "that outside the block"
                )
            if self.followed is None:
                self.undo([number for number in self._undo if number not in kept])

        return Call(
            "SELECT extract(epoch FROM pg_catalog.now())::text, pg_catalog.current_setting('penstock.marks', true)",
            (),
            parse,
        )

    def undo(self, numbers: list[int] | None = None) -> None:
        """Undo some of it here, or all, the newest first."""
        for number in sorted(self._undo.keys() & (self._undo.keys() if numbers is None else numbers), reverse=True):
            self._undo.pop(number)()

    def _is_of(self, began: str) -> None:
        self._ended = self._ended or self._began not in (None, began)
        self._began = began


class Followed:
    """Savepoints as they come and go on a connection that tells what it ran, a moment after it did.

    It tells by way of the event loop; whoever wants to be told in the same order goes the same way.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        # Savepoints by name, and what was done between them by number.
        self._open: list[str | int] = []
        self._undone: list[int] = []

    def note(self, number: int) -> None:
        """Take note of something that was done."""
        self._loop.call_soon(self._open.append, number)

    def ran(self, query: Any) -> None:
        """Take note of a statement, or several."""
        if query.exception is not None:
            return
        for statement in statements(query.query):
            command = _COMMAND.fullmatch(statement)
            if command is not None:
                self._follow(command["verb"].upper(), _folded(command["name"]))

    async def undone(self) -> list[int]:
        """Return what was undone since the last time."""
        await asyncio.sleep(0)
        found, self._undone = self._undone, []
        return found

    def _follow(self, verb: str, name: str) -> None:
        if verb == "SAVEPOINT":
            self._open.append(name)
            return
        if name not in self._open:
            return
        place = len(self._open) - 1 - self._open[::-1].index(name)
        done = [each for each in self._open[place:] if isinstance(each, int)]
        if verb == "ROLLBACK":
            self._undone += done
            del self._open[place + 1 :]
        else:
            self._open[place:] = done


def statements(text: str) -> Iterator[str]:
    """Yield the statements of a text one by one, without their comments."""
    said, begin, depth = "", 0, 0
    for token in _TOKEN.finditer(text):
        found = token[0]
        if depth == 0:
            said += text[begin : token.start()]
        if found == "/*":
            depth += 1
        elif found == "*/":
            depth = max(0, depth - 1)
        elif depth == 0 and found == ";":
            yield said
            said = ""
        elif depth == 0 and not found.startswith("--"):
            said += found
        if depth == 0 and found[:2] in ("--", "*/"):
            said += " "
        begin = token.end()
    yield said + (text[begin:] if depth == 0 else "")


class Nested:
    """The nested transactions of a SQLAlchemy session.

    They begin a savepoint with their first statement, so one that has none rolls back without the database.
    """

    def __init__(self, session: Any, effects: Effects) -> None:
        self._session = session
        self._effects = effects
        self._within: dict[int, list[Any]] = {}

    def note(self, number: int) -> None:
        """Take note of something that was done."""
        chain = []
        transaction = self._session.get_nested_transaction()
        while transaction is not None:
            chain.append(transaction)
            transaction = transaction.parent
        self._within[number] = chain

    def rolled_back(self, session: Any, transaction: Any) -> None:
        """Undo what was done in a nested transaction."""
        undone = [number for number, chain in self._within.items() if any(each is transaction for each in chain)]
        for number in undone:
            del self._within[number]
        self._effects.undo(undone)


@contextmanager
def watch_psycopg(connection: Any, effects: Effects) -> Iterator[None]:
    """Mark before every statement of a psycopg connection."""
    plain = connection.wait

    def wait(generator: Any, *arguments: Any, **options: Any) -> Any:
        if not _busy(connection) and (mark := effects.mark()) is not None and not _aborted(connection):
            plain(_running(connection, mark))
        return plain(generator, *arguments, **options)

    with _replaced(connection, wait):
        yield


@contextmanager
def async_watch_psycopg(connection: Any, effects: Effects) -> Iterator[None]:
    """Mark before every statement of an asynchronous psycopg connection."""
    plain = connection.wait

    async def wait(generator: Any, *arguments: Any, **options: Any) -> Any:
        if not _busy(connection) and (mark := effects.mark()) is not None and not _aborted(connection):
            await plain(_running(connection, mark))
        return await plain(generator, *arguments, **options)

    with _replaced(connection, wait):
        yield


@contextmanager
def watch_sqlalchemy(connection: Any, effects: Effects, run: Callable[[Any, Call[Any]], Any]) -> Iterator[None]:
    """Mark before a statement of a SQLAlchemy connection that may be about a savepoint.

    An asynchronous one has a synchronous one inside, which is meant here.
    """
    from sqlalchemy import event

    def before(inner: Any, cursor: Any, statement: str, *rest: Any) -> None:
        _mark_before(statement, effects, lambda call: run(inner, call))

    event.listen(connection, "before_cursor_execute", before)
    try:
        yield
    finally:
        event.remove(connection, "before_cursor_execute", before)


@contextmanager
def watch_session(session: Any, effects: Effects) -> Iterator[None]:
    """Undo with a nested transaction of a synchronous SQLAlchemy session."""
    from sqlalchemy import event

    effects.nested = Nested(session, effects)
    event.listen(session, "after_soft_rollback", effects.nested.rolled_back)
    try:
        yield
    finally:
        event.remove(session, "after_soft_rollback", effects.nested.rolled_back)


@contextmanager
def watch_django(connection: Any, effects: Effects, run: Callable[[Any, Call[Any]], Any]) -> Iterator[None]:
    """Mark before a statement of a Django connection that may be about a savepoint."""

    def wrapper(execute: Any, statement: Any, parameters: Any, many: bool, context: Any) -> Any:
        _mark_before(str(statement), effects, lambda call: run(connection, call))
        return execute(statement, parameters, many, context)

    with connection.execute_wrapper(wrapper):
        yield


@contextmanager
def mark_at_once(effects: Effects, run: Callable[[Call[Any]], Any]) -> Iterator[None]:
    """Mark everything as soon as it is done."""
    effects.noted = lambda: _mark(effects, run)
    try:
        yield
    finally:
        effects.noted = None


@asynccontextmanager
async def follow_asyncpg(connection: Any, effects: Effects) -> AsyncIterator[None]:
    """Follow the savepoints of an asyncpg connection; before 0.29 it does not tell what it runs."""
    if not hasattr(connection, "add_query_logger"):
        yield
        return
    effects.followed = Followed()
    # Of its own for each block: asyncpg keeps a set of them.
    listener = effects.followed.ran
    connection.add_query_logger(listener)
    try:
        yield
    finally:
        connection.remove_query_logger(listener)


def _mark_before(statement: str, effects: Effects, run: Callable[[Call[Any]], Any]) -> None:
    if _MAY_UNDO.search(statement):
        _mark(effects, run)


def _mark(effects: Effects, run: Callable[[Call[Any]], Any]) -> None:
    mark = effects.mark()
    if mark is None:
        return
    try:
        mark.parse(run(mark))
    except Exception as error:
        # What is done in a transaction that has failed can only be rolled back, and so it is not marked.
        if sqlstate_of(error) != _ABORTED:
            raise


@contextmanager
def _replaced(connection: Any, wait: Callable[..., Any]) -> Iterator[None]:
    before = vars(connection).get("wait")
    connection.wait = wait
    try:
        yield
    finally:
        if before is None:
            del connection.wait
        else:
            connection.wait = before


def _running(connection: Any, call: Call[Any]) -> Any:
    """Run a call on a psycopg connection whose lock is held; in a pipeline its answer comes too late to be read."""
    from psycopg import errors, generators
    from psycopg.pq import ExecStatus, PipelineStatus

    pgconn = connection.pgconn
    if pgconn.pipeline_status != PipelineStatus.OFF:
        yield from connection.cursor()._execute_gen(call.sql, call.parameters)
        return
    # Not by a cursor: the statement that comes next may be the one that begins a pipeline.
    pgconn.send_query_params(call.sql.replace("%s", "$1").encode(), [value.encode() for value in call.parameters])
    *_, result = yield from generators.execute(pgconn)
    if result.status != ExecStatus.TUPLES_OK:
        raise errors.error_from_result(result, connection.info.encoding)
    call.parse([(result.get_value(0, 0).decode(),)])


def _aborted(connection: Any) -> bool:
    return bool(connection.info.transaction_status.name == "INERROR")


def _busy(connection: Any) -> bool:
    """Say whether a statement is under way, like a COPY: this is no new one, and nothing may be sent before it ends."""
    from psycopg.pq import PipelineStatus, TransactionStatus

    # In a pipeline there is always one.
    pgconn = connection.pgconn
    return bool(pgconn.transaction_status == TransactionStatus.ACTIVE and pgconn.pipeline_status == PipelineStatus.OFF)


def _folded(name: str) -> str:
    return name[1:-1].replace('""', '"') if name.startswith('"') else name.lower()
