"""What may be lost in a crash of the server may commit without waiting for the disk, and nothing else does."""

from collections.abc import Iterator
from typing import Any

import pytest
from psycopg import errors
from pushing.steps import come_due, schedule

from databases import Connection, Connections
from penstock.broker.claims import Claim
from penstock.broker.operations.claiming import Pop, Sweep

from .steps import MODES, create_group, must_pop, newest, pass_time, push_some, run

ARRAYS = "ARRAY[%s]::integer[], ARRAY[%s]::bigint[], ARRAY[%s]::uuid[]"
ACK = f"SELECT penstock.ack_claims({ARRAYS}, durable => {{}})"
BOTH = (
    f"SELECT penstock.ack_and_pop({ARRAYS}, NULL, NULL, 'q', 'g', max_messages => 1, auto_ack => {{}}, durable => {{}})"
)


@pytest.fixture
def own(connections: Connections) -> Iterator[Connection]:
    """A connection in a transaction of its own, in which commits wait for the disk."""
    connection = connections.open()
    connection.execute("SET synchronous_commit = on")
    connection.commit()
    yield connection
    connection.rollback()


def waits(connection: Connection) -> bool:
    """Say whether the commit of this transaction waits for the disk; then commit, and see that the next one does."""
    setting = connection.execute("SHOW synchronous_commit").fetchall()
    connection.commit()
    assert connection.execute("SHOW synchronous_commit").fetchall() == [("on",)]
    connection.commit()
    return setting == [("on",)]


def ids(claim: Claim) -> tuple[object, ...]:
    """Return what names a claim."""
    return claim.group_id, claim.partition_id, claim.lease_id


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("options", "waiting"),
    [("", True), ("durable => true", True), ("durable => false", False), ("durable => false, auto_ack => true", True)],
)
def test_a_pop_waits_unless_it_is_told_otherwise_and_always_with_auto_ack(
    sql: Connection, own: Connection, mode: str, options: str, waiting: bool
) -> None:
    create_group(sql, mode=mode)
    push_some(sql, 1)
    query = f"SELECT * FROM penstock.pop_claims('q', 'g'{', ' if options else ''}{options})"
    assert len(own.execute(query.encode()).fetchall()) == 1
    assert waits(own) is waiting


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("durable", [True, False])
def test_a_renewal_waits_unless_it_is_told_otherwise(
    sql: Connection, own: Connection, mode: str, durable: bool
) -> None:
    create_group(sql, mode=mode)
    push_some(sql, 1)
    own.execute(f"SELECT penstock.renew_claims({ARRAYS}, durable => {durable})".encode(), ids(must_pop(sql)))
    assert waits(own) is durable


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("group", "durable", "waiting"),
    [(None, False, True), (True, False, True), (False, False, False), (False, True, True)],
)
def test_an_ack_waits_unless_the_group_and_the_caller_say_otherwise(
    sql: Connection, own: Connection, mode: str, group: bool | None, durable: bool, waiting: bool
) -> None:
    settings: dict[str, Any] = {} if group is None else {"durable_acks": group}
    create_group(sql, mode=mode, **settings)
    push_some(sql, 1)
    assert own.execute(ACK.format(durable).encode(), ids(must_pop(sql))).fetchall() == [([True],)]
    assert waits(own) is waiting


def test_a_group_takes_the_setting_of_its_queue_and_can_override_it(sql: Connection, own: Connection) -> None:
    sql.execute("SELECT penstock.create_queue('q', '{\"durable_acks\": false}')")
    create_group(sql)
    create_group(sql, "careful", durable_acks=True)
    push_some(sql, 1)
    own.execute(ACK.format(False).encode(), ids(must_pop(sql)))
    assert not waits(own)
    own.execute(ACK.format(False).encode(), ids(must_pop(sql, "careful")))
    assert waits(own)


def test_an_ack_for_several_groups_waits_if_one_of_them_does(sql: Connection, own: Connection) -> None:
    claims = []
    push_some(sql, 1)
    for name, durable in (("a", False), ("b", False), ("c", True)):
        create_group(sql, name, durable_acks=durable)
        while (claim := run(sql, Pop("q", name, None, 1, 1, 1, None, "c"))) == []:
            run(sql, Sweep())
        claims += claim
    query = "SELECT penstock.ack_claims(%s::integer[], %s::bigint[], %s::uuid[], durable => false)"
    for some, waiting in ((claims[:2], False), (claims, True)):
        columns = [list(column) for column in zip(*map(ids, some), strict=True)]
        own.execute(query, columns)
        assert waits(own) is waiting


@pytest.mark.parametrize(
    ("group", "acking", "auto_ack", "waiting"),
    [
        (True, True, False, True),
        (False, True, False, False),
        (False, True, True, True),
        (True, False, False, False),
        (True, False, True, True),
    ],
)
def test_a_pop_in_one_call_with_acks_waits_where_they_do(
    sql: Connection, own: Connection, group: bool, acking: bool, auto_ack: bool, waiting: bool
) -> None:
    create_group(sql, durable_acks=group)
    push_some(sql, 2)
    claim = must_pop(sql, most=1)
    query = BOTH.format(auto_ack, False)
    if not acking:
        query = query.replace(ARRAYS, "ARRAY[]::integer[], ARRAY[]::bigint[], ARRAY[]::uuid[]")
    own.execute(query.encode(), ids(claim) if acking else ())
    assert waits(own) is waiting


@pytest.mark.parametrize("durable", [True, False])
def test_a_sweep_waits_unless_it_is_told_otherwise(sql: Connection, own: Connection, durable: bool) -> None:
    create_group(sql)
    push_some(sql, 1)
    must_pop(sql)
    pass_time(sql)
    ((woken,),) = own.execute(f"SELECT woken FROM penstock.sweep(durable => {durable})".encode()).fetchall()
    assert woken == 1
    assert waits(own) is durable
    assert newest(sql)[1] == "r"


def test_a_sweep_that_publishes_messages_waits(sql: Connection, own: Connection) -> None:
    schedule(sql, "later")
    come_due(sql)
    ((woken,),) = own.execute("SELECT woken FROM penstock.sweep(durable => false)").fetchall()
    assert woken == 1
    assert waits(own)


@pytest.mark.parametrize("value", ["1", '"false"', "null", "[]"])
def test_durable_acks_is_true_or_false(sql: Connection, value: str) -> None:
    create_group(sql)
    for function in ("configure_group('q', 'g', %s)", "configure_queue('q', %s)"):
        if value == "null":
            sql.execute(f"SELECT penstock.{function}".encode(), ('{"durable_acks": null}',))  # the default again
        else:
            with pytest.raises(errors.InvalidParameterValue, match=r"durable_acks is .* but must be true or false"):
                sql.execute(f"SELECT penstock.{function}".encode(), (f'{{"durable_acks": {value}}}',))


def test_groups_are_listed_with_the_setting(sql: Connection) -> None:
    create_group(sql)
    create_group(sql, "relaxed", durable_acks=False)
    rows = sql.execute("SELECT name, settings -> 'durable_acks' FROM penstock.list_groups() ORDER BY name").fetchall()
    assert rows == [("g", True), ("relaxed", False)]
