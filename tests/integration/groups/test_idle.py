"""An idle poll writes nothing: no WAL, no transaction id, no row, from any number of clients."""

import threading
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest
from log.interleaving import push

from databases import Connection
from penstock import Client
from penstock.broker.operations.claiming import HasPending, Pop, PopMany, Sweep
from penstock.broker.operations.operation import Operation
from penstock.postgres.statements.call import call_for

from .steps import MODES, ack, create_group, drain, must_pop, pass_time, pop_call, run, sweep

CLIENTS, POLLS = 4, 50
# What the clients' transactions left in the log since a place in it: their own database's blocks.
WRITTEN = (
    "SELECT count(*) FROM pg_get_wal_records_info(%s, %s)"
    " WHERE block_ref LIKE '%%rel %%/' || (SELECT oid FROM pg_database WHERE datname = current_database()) || '/%%'"
)
FLUSH = "SELECT pg_stat_force_next_flush()"
CHANGED = "SELECT sum(n_tup_ins + n_tup_upd + n_tup_del) FROM pg_stat_user_tables WHERE schemaname = 'penstock'"


@pytest.fixture
def idle(sql: Connection) -> Connection:
    """A queue that was consumed to the end by two groups, and whose timers have all run out."""
    for mode in MODES:
        create_group(sql, mode, mode)
    for number in range(20):
        push(sql, f"p{number}")
    for mode in MODES:
        drain(sql, mode)
    pass_time(sql)
    while (swept := sweep(sql)) is not None and swept.woken + swept.trimmed > 0:
        pass_time(sql)
    sql.execute("VACUUM penstock.journal, penstock.ready, penstock.claims, penstock.segments, penstock.partitions")
    return sql


def explained(connection: Connection, call: Any) -> str:
    """Run a call and return what PostgreSQL says it wrote."""
    made = call_for(call)
    rows = connection.execute(f"EXPLAIN (ANALYZE, WAL, COSTS OFF) {made.sql}".encode(), made.parameters).fetchall()
    return "\n".join(line for (line,) in rows)


@pytest.mark.parametrize("mode", MODES)
def test_an_empty_pop_and_its_sweep_write_no_wal_and_take_no_transaction_id(idle: Connection, mode: str) -> None:
    calls: list[Operation[Any]] = [
        pop_call(mode),
        pop_call(mode, partition="p1"),
        pop_call(mode, auto_ack=True),
        PopMany([Pop("q", mode, name, 1, 1, 1, None, "c", False) for name in (None, "p1")]),
        HasPending("q", mode, None, None),
        HasPending("q", mode, "p1", None),
        Sweep(),
    ]
    for call in calls:
        run(idle, call)  # whoever reads first tidies up the pages that writers have left
        with idle.transaction():
            assert "WAL" not in explained(idle, call)
            assert idle.execute("SELECT pg_current_xact_id_if_assigned()").fetchall() == [(None,)]


def test_what_does_write_is_seen_that_way(idle: Connection) -> None:
    push(idle)
    with idle.transaction():
        assert "WAL: records=" in explained(idle, pop_call("ordered"))
        assert idle.execute("SELECT pg_current_xact_id_if_assigned() IS NOT NULL").fetchall() == [(True,)]


def poll(client: Client, barrier: threading.Barrier, came: list[object]) -> None:
    barrier.wait()
    for number in range(POLLS):
        came.append(client.pop("q", MODES[number % 2]))


def written_by_idle_clients(dsn: str, sql: Connection) -> int:
    """Let several clients poll at once and return how many records of the log touch their database."""
    came: list[object] = []
    with ExitStack() as stack:
        clients = [stack.enter_context(Client(dsn)) for _ in range(CLIENTS)]
        for client in clients:
            for mode in MODES:
                client.pop("q", mode)
        sql.execute("CHECKPOINT")
        for client in clients:
            for mode in MODES:
                client.pop("q", mode)
        ((before,),) = sql.execute("SELECT pg_current_wal_insert_lsn()").fetchall()
        barrier = threading.Barrier(CLIENTS)
        threads = [threading.Thread(target=poll, args=(client, barrier, came)) for client in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert came == [None] * (CLIENTS * POLLS)
    ((after,),) = sql.execute("SELECT pg_current_wal_insert_lsn()").fetchall()
    if before == after:
        return 0
    # A record of our own behind theirs, waited for, so that all of theirs is on disk and can be looked at.
    sql.execute("SET synchronous_commit = on")
    sql.execute("SELECT pg_logical_emit_message(true, 'test', 'end')")
    return int(sql.execute(WRITTEN.encode(), (before, after)).fetchall()[0][0])


def test_two_hundred_idle_polls_of_several_clients_write_nothing(dsn: str, idle: Connection) -> None:
    try:
        idle.execute("CREATE EXTENSION IF NOT EXISTS pg_walinspect")
    except psycopg.Error as error:
        pytest.skip(f"this server cannot look into its log: {error}")
    # So that autovacuum, which writes, has nothing to do.
    idle.execute("VACUUM ANALYZE")
    idle.execute(FLUSH)
    before = idle.execute(CHANGED).fetchall()
    assert written_by_idle_clients(dsn, idle) == 0
    assert idle.execute(CHANGED).fetchall() == before


def test_a_pop_between_them_is_noticed(dsn: str, idle: Connection) -> None:
    idle.execute(FLUSH)
    before = idle.execute(CHANGED).fetchall()
    push(idle)
    claim = must_pop(idle, "ordered")
    ack(idle, claim)
    idle.execute(FLUSH)
    assert idle.execute(CHANGED).fetchall() != before
    run(idle, Sweep())
