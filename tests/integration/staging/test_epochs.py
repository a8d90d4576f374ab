"""An epoch of a flow: its messages, its dead letters and its group's progress are published together, or not at all."""

import pytest
from psycopg import errors

from databases import Connection, Connections
from penstock import Client
from penstock.errors import PenstockError

from .steps import CheckpointRefused, note, read, stage, value

EPOCH = "SELECT outcome, messages, dead_letters FROM penstock.publish_epoch(%s, %s, %s, %s, %s, %s)"


def publish(
    sql: Connection, stages: dict[int, int], *, epoch: int = 0, run: str = "run-1", writer: str = "query"
) -> tuple[str, int, int]:
    ((outcome, messages, dead),) = sql.execute(
        EPOCH.encode(), ("flow", writer, run, epoch, list(stages), list(stages.values()))
    ).fetchall()
    return outcome, messages, dead


def put_aside(sql: Connection, number: int, offsets: list[int], *, of_source: bool, reason: str = "bad") -> None:
    count = len(offsets)
    sql.execute(
        "SELECT penstock.stage_dead_letters(%s, 'flow', %s, %s, %s, %s, %s, %s)",
        (number, ["in"] * count, ["p"] * count, offsets, [reason] * count, ["why"] * count, of_source),
    )


def snapshot(sql: Connection, stop: int, parent: int = 0, start: int = 0) -> int:
    return int(
        value(
            sql,
            "SELECT s.snapshot_id FROM penstock.partitions p CROSS JOIN LATERAL penstock.save_snapshot("
            "%s, (SELECT token FROM penstock.snapshots WHERE snapshot_id = %s), ARRAY[p.partition_id],"
            " ARRAY[%s::bigint], ARRAY[%s::bigint], ARRAY[p.partition_id], ARRAY[%s::bigint]"
            ") s WHERE p.name = 'p' AND p.queue_id = (SELECT queue_id FROM penstock.queues WHERE name = 'in')",
            parent,
            parent,
            start,
            stop,
            stop,
        )
    )


@pytest.fixture
def source(sql: Connection, client: Client) -> Client:
    """Ten messages that flow `flow` has to read."""
    client.push("in", [b"%d" % number for number in range(10)], partition="p", key="k")
    sql.execute("SELECT penstock.ensure_reader('in', 'flow')")
    return client


def test_messages_dead_letters_and_progress_come_together(sql: Connection, source: Client) -> None:
    note(sql, snapshot(sql, 6))
    written, read_by = stage(sql, {"p": ["a"]}), stage(sql, {})
    put_aside(sql, written, [2], of_source=False)
    put_aside(sql, read_by, [4], of_source=True)
    assert source.dead_letters("in") == []
    assert source.lag("in", "flow") == 10
    assert publish(sql, {written: 1}) == ("published", 1, 2)
    assert read(sql) == ["a"]
    assert source.lag("in", "flow") == 4
    letters = source.dead_letters("in", "flow")
    assert [(letter.offset, letter.value, letter.key, letter.last_error) for letter in letters] == [
        (2, b"2", "k", "why"),
        (4, b"4", "k", "why"),
    ]
    assert value(sql, "SELECT count(*) FROM penstock.staged_dead_letters") == 0


def test_an_epoch_that_is_published_again_makes_no_second_dead_letter(sql: Connection, source: Client) -> None:
    first = snapshot(sql, 6)
    for run in ("run-1", "run-2"):
        note(sql, first, run=run)
        again = stage(sql, {"p": ["a"]}, run=run)
        put_aside(sql, again, [2], of_source=True)
        publish(sql, {again: 1}, run=run)
    assert [letter.offset for letter in source.dead_letters("in")] == [2]
    assert read(sql) == ["a"]


def test_what_two_attempts_of_a_source_put_aside_is_one_dead_letter(sql: Connection, source: Client) -> None:
    for number in (stage(sql, {}), stage(sql, {})):
        put_aside(sql, number, [3], of_source=True)
    assert publish(sql, {}) == ("published", 0, 1)


def test_what_an_attempt_of_a_sink_put_aside_counts_only_with_it(sql: Connection, source: Client) -> None:
    loser, winner = stage(sql, {"p": ["a"]}), stage(sql, {"p": ["a"]})
    put_aside(sql, loser, [3], of_source=False)
    assert publish(sql, {winner: 1}) == ("published", 1, 0)


def test_a_failure_leaves_neither_messages_nor_dead_letters_nor_progress(sql: Connection, source: Client) -> None:
    note(sql, snapshot(sql, 6))
    number = stage(sql, {"p": ["a"]})
    put_aside(sql, number, [2], of_source=False)
    with pytest.raises(errors.ObjectNotInPrerequisiteState, match="gone or incomplete"):
        publish(sql, {number: 2})
    assert source.dead_letters("in") == []
    assert source.lag("in", "flow") == 10


def test_a_query_of_another_checkpoint_publishes_nothing(sql: Connection, source: Client) -> None:
    sql.execute("SELECT penstock.register_flow('flow', 'TRANSFORM', '{in}', '{q}', 's', 'c', '{}', '{}', '{}')")
    publish(sql, {stage(sql, {"p": ["a"]}): 1})
    with pytest.raises(CheckpointRefused, match='flow "flow" belongs to query query'):
        publish(sql, {stage(sql, {"p": ["b"]}, writer="other"): 1}, writer="other")
    assert read(sql) == ["a"]


def test_an_open_push_to_the_source_does_not_hold_up_the_epoch(
    sql: Connection, source: Client, connections: Connections
) -> None:
    pusher = connections.open()
    pusher.execute("SELECT penstock.push('in', ARRAY['x'::bytea], 'p')")
    note(sql, snapshot(sql, 6))
    assert publish(sql, {stage(sql, {"p": ["a"]}): 1})[0] == "published"
    pusher.rollback()
    assert source.lag("in", "flow") == 10


def test_a_reset_tells_the_group_where_the_last_epoch_ended(
    sql: Connection, source: Client, connections: Connections
) -> None:
    sql.execute("SELECT penstock.register_flow('flow', 'TRANSFORM', '{in}', '{q}', 's', 'c', '{}', '{}', '{}')")
    pusher = connections.open()
    pusher.execute("SELECT penstock.push('in', ARRAY['x'::bytea], 'p')")
    note(sql, snapshot(sql, 6))
    publish(sql, {stage(sql, {"p": ["a"]}): 1})
    assert value(sql, "SELECT penstock.reset_flow('flow', 'new')") == 1
    assert source.flows()[0].checkpoint == "c"
    pusher.rollback()
    assert value(sql, "SELECT penstock.reset_flow('flow', 'new')") == 0
    assert source.flows()[0].checkpoint == "new"
    assert source.lag("in", "flow") == 4
    assert value(sql, "SELECT positions FROM penstock.reader_positions('{in}', 'flow')") == [6]


def test_a_flow_is_held_by_one_supervisor_until_that_one_stops(sql: Connection) -> None:
    def tell(supervisor: str, state: str = "running") -> str:
        return str(value(sql, "SELECT holder FROM penstock.heartbeat_flow('flow', %s, %s)", supervisor, state))

    assert tell("a") == "a"
    assert tell("b") == "a"
    assert value(sql, "SELECT state FROM penstock.flow_states") == "running"
    assert tell("a", "stopped") == "a"
    assert tell("b") == "b"
    sql.execute("UPDATE penstock.flow_states SET heartbeat_at = heartbeat_at - interval '16 seconds'")
    assert tell("a") == "a"
    assert value(sql, "SELECT holder FROM penstock.heartbeat_flow('flow', 'c', 'running', take_over => true)") == "c"


def test_what_is_admitted_is_warm_and_the_rest_cold(sql: Connection, source: Client) -> None:
    sql.execute("SELECT penstock.register_flow('flow', 'TRANSFORM', '{in}', '{q}', 's', 'c', '{}', '{}', '{}')")
    first = snapshot(sql, 3)
    note(sql, first)
    publish(sql, {stage(sql, {"p": ["a"]}): 1})
    note(sql, snapshot(sql, 7, first, 3), epoch=1)
    (info,) = source.flows()
    assert (info.lag, info.warm, info.cold) == (7, 4, 3)


def test_a_flow_that_runs_is_not_forgotten(sql: Connection, client: Client) -> None:
    sql.execute("SELECT penstock.register_flow('flow', 'TRANSFORM', '{}', '{}', 's', 'c', '{}', '{}', '{}')")
    sql.execute("SELECT penstock.heartbeat_flow('flow', 'a', 'running')")
    with pytest.raises(PenstockError, match="is being run by a supervisor"):
        client.forget_flow("flow")
    sql.execute("SELECT penstock.heartbeat_flow('flow', 'a', 'stopped')")
    client.forget_flow("flow")
    assert client.flows() == []
