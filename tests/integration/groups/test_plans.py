"""What a call costs does not grow with what is stored, also in a session that began when there was nothing.

Plans are made for the tables as they were when they were last analysed, and kept. So an old session calls every
function on small tables, these grow a thousand times and nobody tells the planner, and the session calls them again.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Self
from uuid import uuid4

import psycopg
import pytest
from log.interleaving import mutate
from psycopg.conninfo import make_conninfo
from psycopg.sql import SQL, Identifier

from databases import Connection
from penstock.broker.claims import Claim
from penstock.broker.items import ItemNote, ItemOutcome, ItemResult, Output, SettledClaim
from penstock.broker.messages import Message
from penstock.broker.operations.claiming import HasPending, Nack, Pop, PopMany, Release, Renew, Sweep
from penstock.broker.operations.groups import CreateGroup
from penstock.broker.operations.items import (
    GetResult,
    GetState,
    ListCancelled,
    NoteItems,
    ReadNotes,
    SaveStep,
    SettleItems,
)
from penstock.broker.operations.operation import Operation
from penstock.broker.places import Place
from penstock.broker.pushing import PushBatch
from penstock.postgres.statements.call import call_for

from .steps import MODES, ack_of, create_group, must_pop, pass_time, pop_call, run

HOT = ["partitions", "segments", "journal", "ready", "claims"]
SMALL, LARGE = 1_000, 100_000
PUSH = "SELECT * FROM penstock.push_segment('q', %s, 1, 'x'::bytea, '\\x01000000'::bytea)"
PUSHES = (
    "SELECT * FROM penstock.push_segments(ARRAY['q', 'q'], ARRAY[%s, %s], ARRAY[1, 1], ARRAY['x'::bytea, 'x'::bytea],"
    " ARRAY['\\x01000000'::bytea, '\\x01000000'::bytea])"
)
ALL = ((None, None),)
OUTPUT = Output(0, PushBatch.of(Place("q", "old"), [Message(b"x")]))
IDLE = Pop("idle", "idle", None, 100, 1 << 20, 1, None, "c", False)
# Partitions with a message each, ready for both groups: what as many pushes would have left.
GROW = [
    "INSERT INTO penstock.partitions (queue_id, name) SELECT q.queue_id, 'n' || n"
    " FROM penstock.queues q, generate_series(%(first)s::integer, %(last)s) n WHERE q.name = 'q'",
    "INSERT INTO penstock.segments (partition_id, base_offset, created_at, count, bytes, body, ends)"
    " SELECT partition_id, 0, clock_timestamp(), 1, 1, 'x', '\\x01000000' FROM penstock.partitions p"
    " WHERE NOT EXISTS (SELECT 1 FROM penstock.segments s WHERE s.partition_id = p.partition_id)",
    "WITH waking AS MATERIALIZED (SELECT g.group_id, p.partition_id, nextval('penstock.ready_seq') AS seq"
    " FROM penstock.consumer_groups g JOIN penstock.partitions p USING (queue_id)"
    " WHERE NOT EXISTS (SELECT 1 FROM penstock.journal j"
    " WHERE j.group_id = g.group_id AND j.partition_id = p.partition_id)), appended AS ("
    " INSERT INTO penstock.journal (group_id, partition_id, version, state, committed, claimed_to, ready_seq)"
    " SELECT group_id, partition_id, 1, 'r', 0, 0, seq FROM waking)"
    " INSERT INTO penstock.ready (group_id, priority, seq, partition_id)"
    " SELECT group_id, 0, seq, partition_id FROM waking",
]


def pops_call(group: str) -> Operation[Any]:
    """Return the call of three pops at once, one of them by name."""
    requests = [Pop("q", group, name, 1, 1 << 20, 1, None, "c", False) for name in (None, None, "old")]
    return PopMany(requests)


def grow(sql: Connection, first: int, last: int) -> None:
    """Add partitions to the queue, and leave the statistics as they are."""
    for statement in GROW:
        sql.execute(statement.encode(), {"first": first, "last": last})


def cost(connection: Connection, query: str, parameters: tuple[Any, ...]) -> int:
    """Run a statement and return how many blocks it looked at, all it calls included."""
    explain = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {query}"
    ((plan,),) = connection.execute(explain.encode(), parameters).fetchall()
    top = (json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"]
    return int(top["Shared Hit Blocks"] + top["Shared Read Blocks"])


class Session:
    """A session that calls all that consumers and producers call often."""

    def __init__(self, dsn: str) -> None:
        self.connection: Connection = psycopg.connect(dsn, autocommit=True)
        # Whoever turns the clock reads no table as a whole: that is counted.
        self.clock: Connection = psycopg.connect(dsn, autocommit=True, options="-c enable_seqscan=off")
        self.pushed = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()
        self.clock.close()

    def flush(self) -> None:
        """Let others see what this session has counted."""
        for connection in (self.connection, self.clock):
            connection.execute("SELECT pg_stat_force_next_flush()")
            connection.execute("SELECT 1")

    def costs(self) -> dict[str, int]:
        """Call everything once and return what each call cost."""
        found = {
            "push": self._push(PUSH, 1),
            "push to an old partition": cost(self.connection, PUSH, ("old",)),
            "push to several": self._push(PUSHES, 2),
            "push to several old partitions": cost(self.connection, PUSHES, ("old", "older")),
            "pop of nothing": self._call(IDLE),
            "check of nothing": self._call(HasPending("idle", "idle", None, None)),
        }
        for mode in MODES:
            found[f"pop, {mode}"] = self._call(pop_call(mode, most=1))
            found[f"pop of several, {mode}"] = self._call(pop_call(mode, most=1, partitions=5))
            found[f"pop by name, {mode}"] = self._call(pop_call(mode, most=1, partition="old"))
            found[f"pop of many, {mode}"] = self._call(pops_call(mode))
            found[f"check, {mode}"] = self._call(HasPending("q", mode, None, None))
            found[f"check by name, {mode}"] = self._call(HasPending("q", mode, "old", None))
            found[f"pop with auto_ack, {mode}"] = self._call(pop_call(mode, auto_ack=True))
            for name, settle in self._settlings().items():
                found[f"{name}, {mode}"] = self._settle(mode, settle)
            # By groups of their own, so that others find the ready list as it would be without.
            for name, settle in self._item_calls().items():
                found[f"{name}, {mode}"] = self._settle(f"{mode} items", settle)
        found["resync"] = cost(self.connection, "SELECT * FROM penstock.resync(10, 10)", ())
        pass_time(self.clock)
        found["sweep"] = self._call(Sweep())
        while (swept := run(self.connection, Sweep())) is not None and swept.woken + swept.trimmed:
            pass_time(self.clock)
        found["sweep of nothing"] = self._call(Sweep())
        return found

    def _push(self, query: str, names: int) -> int:
        self.pushed += 1
        return cost(self.connection, query, tuple(f"new{self.pushed}.{name}" for name in range(names)))

    def _call(self, call: Operation[Any]) -> int:
        made = call_for(call)
        return cost(self.connection, made.sql, made.parameters)

    def _settle(self, mode: str, settle: Callable[[Claim], Operation[Any]]) -> int:
        claim = must_pop(self.connection, mode, most=1)
        spent = self._call(settle(claim))
        self.connection.execute("SELECT penstock.release_claim(%s, %s)", (claim.group_id, claim.partition_id))
        return spent

    @staticmethod
    def _settlings() -> dict[str, Callable[[Claim], Operation[Any]]]:
        return {
            "ack": lambda claim: ack_of([claim]),
            "nack": lambda claim: Nack(claim.lease, None, "oops", None, None),
            "nack at once": lambda claim: Nack(claim.lease, claim.start, "oops", None, 0.0),
            "renew": lambda claim: Renew([claim.lease]),
            "release": lambda claim: Release(claim.lease),
        }

    @staticmethod
    def _item_calls() -> dict[str, Callable[[Claim], Operation[Any]]]:
        return {
            "settle with outputs": lambda claim: SettleItems([SettledClaim(claim.lease, ALL)], [OUTPUT]),
            "settle a failure": lambda claim: SettleItems(
                [SettledClaim(claim.lease, (), [ItemOutcome(claim.start, "failed", 0.0)], True, [claim.start])],
                results=[ItemResult(0, claim.start, "raised")],
            ),
            "note": lambda claim: NoteItems([ItemNote(claim.lease, claim.start, 1)]),
            "step": lambda claim: SaveStep(claim.lease, claim.start, "step", b"1"),
            "read notes": lambda claim: ReadNotes(claim.lease, claim.start),
            "state": lambda claim: GetState(claim.messages[0].id),
            "result": lambda claim: GetResult(claim.messages[0].id),
            "cancelled": lambda claim: ListCancelled([(claim.group_id, claim.partition_id)]),
        }


def scans(sql: Connection) -> dict[str, tuple[int, int]]:
    """Return how often each table was read as a whole, and by index."""
    rows = sql.execute(
        "SELECT relname, seq_scan, idx_scan FROM pg_stat_user_tables"
        " WHERE schemaname = 'penstock' AND relname = ANY (%s)",
        (HOT,),
    ).fetchall()
    return {table: (whole, by_index) for table, whole, by_index in rows}


def begin(connection: Connection, analysed: str) -> None:
    """Make queue and groups; let the planner know the tables as they are when they are empty, or have a few rows."""
    for table in (*HOT, "queues", "consumer_groups", "late_wakeups"):
        connection.execute(SQL("ALTER TABLE penstock.{} SET (autovacuum_enabled = off)").format(Identifier(table)))
    for mode in MODES:
        create_group(connection, mode, mode, max_attempts=1000)
        create_group(connection, f"{mode} items", mode, max_attempts=1000)
    run(connection, CreateGroup("idle", "idle", "ordered", "all"))
    if analysed == "empty":
        connection.execute("VACUUM ANALYZE")
    grow(connection, 1, 40)
    if analysed == "small":
        connection.execute("VACUUM ANALYZE")


@dataclass(frozen=True)
class Measured:
    """What each call cost an old session at a thousand partitions and at many more, and how tables were read then."""

    small: dict[str, int]
    large: dict[str, int]
    whole: dict[str, int]
    by_index: dict[str, int]


def measure(dsn: str, analysed: str, partitions: int, *changes: tuple[str, str, str]) -> Measured:
    """Use a session on small tables, let them grow, and use it again."""
    with psycopg.connect(dsn, autocommit=True) as sql, Session(dsn) as session:
        for function, old, new in changes:
            mutate(sql, function, (old, new))
        begin(sql, analysed)
        for _ in range(7):
            session.costs()
        grow(sql, 41, SMALL)
        small = session.costs()
        grow(sql, SMALL + 1, partitions)
        session.flush()
        before = scans(sql)
        large = session.costs()
        session.flush()
        after = scans(sql)
    whole = {table: after[table][0] - before[table][0] for table in HOT}
    return Measured(small, large, whole, {table: after[table][1] - before[table][1] for table in HOT})


@pytest.fixture(scope="module", params=["empty", "small"])
def measured(request: pytest.FixtureRequest, penstock_server: str, penstock_template: str) -> Iterator[Measured]:
    """What each call cost an old session, at a thousand partitions and at a hundred thousand."""
    name = f"penstock_plans_{uuid4().hex[:12]}"
    with psycopg.connect(penstock_server, autocommit=True) as server:
        server.execute(SQL("CREATE DATABASE {} TEMPLATE {}").format(Identifier(name), Identifier(penstock_template)))
        yield measure(make_conninfo(penstock_server, dbname=name), request.param, LARGE)
        server.execute(SQL("DROP DATABASE {} WITH (FORCE)").format(Identifier(name)))


def test_no_call_reads_a_table_as_a_whole(measured: Measured) -> None:
    assert measured.whole == dict.fromkeys(HOT, 0)


def test_every_table_is_read_by_its_indexes(measured: Measured) -> None:
    assert all(count > 0 for count in measured.by_index.values())


def test_a_hundred_times_the_partitions_do_not_make_a_call_look_at_more_blocks(measured: Measured) -> None:
    grown = {
        call: (measured.small[call], blocks)
        for call, blocks in measured.large.items()
        if blocks >= 3 * measured.small[call] + 10
    }
    assert grown == {}


def test_what_is_called_most_looks_at_few_blocks(measured: Measured) -> None:
    most = {
        "push to an old partition": 60,
        "pop of nothing": 20,
        "check of nothing": 10,
        "pop, ordered": 90,
        "ack, ordered": 60,
    }
    assert {call: measured.large[call] for call in most if measured.large[call] > most[call]} == {}


def test_without_pins_an_old_session_reads_the_journal_as_a_whole(penstock_dsn: str) -> None:
    pins = "SET enable_seqscan = off\n"
    changes = [
        (function, pins, "") for function in ("nack_claim", "ack_claims", "renew_claims", "release_claim", "sweep")
    ]
    measured = measure(penstock_dsn, "empty", 3 * SMALL, *changes)
    assert measured.whole["journal"] > 0


def test_without_a_limit_an_old_session_looks_at_all_partitions_for_each_push(penstock_dsn: str) -> None:
    plain = (
        "wake_partitions",
        "CROSS JOIN LATERAL (\n"
        "            SELECT p.* FROM penstock.partitions p WHERE p.partition_id = w.partition_id LIMIT 1\n"
        "        ) p\n",
        "JOIN penstock.partitions p ON p.partition_id = w.partition_id\n",
    )
    measured = measure(penstock_dsn, "small", 10 * SMALL, plain)
    call = "push to several old partitions"
    assert measured.large[call] > 3 * measured.small[call]
