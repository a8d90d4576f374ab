"""An epoch is published once, whole, by the newest run, in order; anything else changes nothing and says so."""

import re
import struct
from typing import Any

import psycopg
import pytest
from log.interleaving import PUSH_ONE, Running, push
from psycopg import errors

from databases import Connection, Connections
from penstock import Client

from .steps import PUBLISH, CheckpointRefused, add, note, publish, read, stage, staged_segments, value


def verified(sql: Connection) -> bool:
    return not sql.execute("SELECT 1 FROM penstock.verify() WHERE violations > 0").fetchall()


def test_what_is_staged_is_seen_by_nobody(sql: Connection, client: Client) -> None:
    push(sql)
    stage(sql, {"p": ["a", "b"], "new": ["c"]})
    client.create_group("q", "g")
    assert read(sql) == ["x"]
    assert [partition.name for partition in client.partitions("q")] == ["p"]
    assert [info.messages for info in client.queues()] == [1]
    assert value(sql, "SELECT count(*) FROM penstock.messages") == 1
    assert value(sql, "SELECT lag FROM penstock.list_groups('q')") == 1
    assert [chunk.visited for chunk in client.maintain()] == [1]
    assert staged_segments(sql) == 2
    assert verified(sql)


def test_an_epoch_of_several_tasks_queues_and_partitions_lies_in_the_order_of_its_stages(sql: Connection) -> None:
    push(sql)
    second = stage(sql, {"p": ["c"], "r": ["d"]})
    first = stage(sql, {"p": ["a", "b"]})
    other = stage(sql, {"p": ["e"]}, queue="other")
    add(sql, first, 1, {"p": ["b2"]})
    assert publish(sql, {first: 3, second: 2, other: 1}) == ("published", 6)
    assert read(sql) == ["x", "a", "b", "b2", "c"]
    assert read(sql, "r") == ["d"]
    assert read(sql, queue="other") == ["e"]
    assert staged_segments(sql) == 0
    assert value(sql, "SELECT count(*) FROM penstock.stages") == 0
    assert value(sql, "SELECT count(*) FROM penstock.staged") == 0
    assert verified(sql)


def test_publishing_wakes_the_groups_that_wait(sql: Connection, client: Client) -> None:
    client.create_group("q", "g")
    publish(sql, {stage(sql, {"p": ["a"]}): 1})
    batch = client.pop("q", "g")
    assert batch is not None
    assert [message.value for message in batch.messages] == [b"a"]


def test_the_payload_stays_where_it_is(sql: Connection) -> None:
    large = "".join(chr(97 + index * 7 % 26) for index in range(600_000))
    number = stage(sql, {"p": [large]})
    before = value(sql, "SELECT pg_current_wal_insert_lsn()")
    publish(sql, {number: 1})
    assert value(sql, "SELECT pg_current_wal_insert_lsn() - %s::pg_lsn", before) < 100_000
    assert read(sql) == [large]


def test_the_payload_of_small_segments_stays_where_it_is_too(sql: Connection) -> None:
    number = stage(sql, {f"p{index}": ["x" * 2500] for index in range(400)})
    before = value(sql, "SELECT pg_current_wal_insert_lsn()")
    publish(sql, {number: 400})
    assert value(sql, "SELECT pg_current_wal_insert_lsn() - %s::pg_lsn", before) < 400 * 2500 / 2
    assert read(sql, "p399") == ["x" * 2500]


SEGMENTS = "SELECT penstock.stage_segments(%s, 0, '{q,q}', '{a,b}', %s::integer[], %s, %s, %s, %s)"


def int32s(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}i", *numbers)


def test_segments_are_cut_out_of_columns_that_lie_end_to_end(sql: Connection) -> None:
    number = stage(sql, {})
    ends, key_ends = int32s(1, 3, 3, 3), int32s(0, 0, 2, 2)
    sql.execute(SEGMENTS, (number, [2, 2], b"abbccc", ends, b"kk", key_ends))
    assert publish(sql, {number: 4}) == ("published", 4)
    found = sql.execute(
        "SELECT partition_name, convert_from(payload, 'UTF8'), key FROM penstock.messages"
        " ORDER BY partition_name, message_offset"
    ).fetchall()
    assert found == [("a", "a", None), ("a", "bb", None), ("b", "ccc", "kk"), ("b", "", None)]
    assert sql.execute("SELECT keys FROM penstock.segments ORDER BY partition_id").fetchall() == [(None,), (b"kk",)]
    assert verified(sql)


def test_a_partition_may_come_several_times_in_what_is_staged_at_once(sql: Connection) -> None:
    push(sql)
    number = stage(sql, {})
    sql.execute(
        "SELECT penstock.stage_segments(%s, 0, ARRAY['q', 'q', 'qp', 'q'], ARRAY['p', 'r', 'r', 'p'],"
        " ARRAY[2, 1, 1, 1], %s, %s)",
        (number, b"abrsc", int32s(1, 2, 1, 1, 1)),
    )
    assert publish(sql, {number: 5}) == ("published", 5)
    assert read(sql) == ["x", "a", "b", "c"]
    assert read(sql, "r") == ["r"]
    assert read(sql, "r", "qp") == ["s"]
    assert verified(sql)


@pytest.mark.parametrize(
    ("counts", "body", "ends", "keys", "key_ends"),
    [
        ([1, 0], b"a", int32s(1), None, None),
        ([1, None], b"a", int32s(1), None, None),
        ([1, 1], b"ab", int32s(1), None, None),
        ([1, 1], b"abc", int32s(1, 1), None, None),
        ([1, 1], b"a", int32s(3, -2), None, None),
        ([1, 1], b"ab", int32s(3, -1), None, None),
        ([1, 1], b"ab", int32s(-1, 3), None, None),
        ([1, 1], b"ab", int32s(1, 2**31 - 1), None, None),
        ([1, 1], b"ab", int32s(1, 1), b"k", None),
        ([1, 1], b"ab", int32s(1, 1), b"k", int32s(1)),
        ([1, 1], b"ab", int32s(1, 1), b"k", int32s(1, 1)),
        ([1, 1], None, int32s(1, 1), None, None),
    ],
)
def test_columns_that_do_not_fit_together_are_refused(
    sql: Connection,
    counts: list[int | None],
    body: bytes | None,
    ends: bytes,
    keys: bytes | None,
    key_ends: bytes | None,
) -> None:
    number = stage(sql, {})
    with pytest.raises(errors.InvalidParameterValue):
        sql.execute(SEGMENTS, (number, counts, body, ends, keys, key_ends))
    assert staged_segments(sql) == 0


def test_a_message_over_the_limit_is_refused_in_whichever_segment_it_is(sql: Connection, client: Client) -> None:
    client.create("q", max_message_bytes=1000)
    number = stage(sql, {})
    body = b"x" * 2000
    sql.execute(SEGMENTS, (number, [2, 2], body, int32s(500, 1000, 500, 1000), None, None))
    other = stage(sql, {})
    with pytest.raises(errors.ProgramLimitExceeded, match="a message of 1001 bytes"):
        sql.execute(SEGMENTS, (other, [2, 2], body + b"x", int32s(500, 1000, 0, 1001), None, None))
    assert staged_segments(sql) == 2


def test_an_epoch_is_published_once(sql: Connection) -> None:
    publish(sql, {stage(sql, {"p": ["a"]}): 1})
    again = stage(sql, {"p": ["a"]}, run="run-2")
    assert publish(sql, {again: 1}, run="run-2") == ("skipped", 1)
    assert read(sql) == ["a"]
    assert staged_segments(sql) == 0


def test_a_run_that_does_not_know_whether_it_has_published_may_ask_again(sql: Connection) -> None:
    note(sql, 7)
    number = stage(sql, {"p": ["a"]})
    assert publish(sql, {number: 1}) == ("published", 1)
    assert publish(sql, {number: 1}) == ("skipped", 1)
    assert read(sql) == ["a"]


def test_notes_of_epochs_that_nobody_publishes_do_not_pile_up(sql: Connection) -> None:
    for epoch in range(10):
        note(sql, 100 + epoch, epoch=epoch)
    assert value(sql, "SELECT count(*) FROM penstock.epoch_sources") == 2


def test_an_epoch_that_reads_something_else_is_refused(sql: Connection) -> None:
    note(sql, 7)
    publish(sql, {stage(sql, {"p": ["a"]}): 1})
    note(sql, 8, run="run-2")
    again = stage(sql, {"p": ["b"]}, run="run-2")
    with pytest.raises(CheckpointRefused, match="with other content"):
        publish(sql, {again: 1}, run="run-2")
    assert read(sql) == ["a"]


def test_the_same_reading_is_the_same_epoch_whatever_came_of_it(sql: Connection) -> None:
    note(sql, 7)
    publish(sql, {stage(sql, {"p": ["a"]}): 1})
    note(sql, 7, run="run-2")
    assert publish(sql, {stage(sql, {"p": ["a", "b"]}, run="run-2"): 2}, run="run-2") == ("skipped", 1)
    assert read(sql) == ["a"]


def test_without_a_known_source_another_number_of_rows_is_refused(sql: Connection) -> None:
    publish(sql, {stage(sql, {"p": ["a"]}): 1})
    again = stage(sql, {"p": ["a", "b"]}, run="run-2")
    with pytest.raises(CheckpointRefused, match="with other content"):
        publish(sql, {again: 2}, run="run-2")


def test_an_epoch_after_a_gap_is_refused(sql: Connection) -> None:
    publish(sql, {stage(sql, {"p": ["a"]}): 1})
    number = stage(sql, {"p": ["c"]}, epoch=2)
    with pytest.raises(CheckpointRefused, match="comes after epoch 0"):
        publish(sql, {number: 1}, epoch=2)
    assert read(sql) == ["a"]


def test_a_query_may_begin_at_any_epoch_and_go_on_with_empty_ones(sql: Connection) -> None:
    assert publish(sql, {stage(sql, {"p": ["a"]}, epoch=41): 1}, epoch=41) == ("published", 1)
    assert publish(sql, {}, epoch=42) == ("published", 0)
    assert publish(sql, {stage(sql, {"p": ["b"]}, epoch=43): 1}, epoch=43) == ("published", 1)
    assert read(sql) == ["a", "b"]


def test_a_run_that_was_replaced_may_not_publish(sql: Connection) -> None:
    publish(sql, {stage(sql, {"p": ["a"]}): 1})
    old = stage(sql, {"p": ["old"]}, epoch=1)
    stage(sql, {"p": ["new"]}, epoch=1, run="run-2")
    with pytest.raises(errors.ObjectNotInPrerequisiteState, match="replaced by a newer one"):
        publish(sql, {old: 1}, epoch=1)
    assert read(sql) == ["a"]


@pytest.mark.parametrize("wrong", [{"epoch": 5}, {"run": "run-0"}, {"writer": "other"}])
def test_a_stage_of_another_epoch_run_or_query_is_refused(sql: Connection, wrong: dict[str, Any]) -> None:
    number = stage(sql, {"p": ["a"]}, **wrong)
    with pytest.raises(errors.ObjectNotInPrerequisiteState, match="gone or incomplete"):
        publish(sql, {number: 1})
    assert staged_segments(sql) == 1


@pytest.mark.parametrize("claimed", [0, 1, 3])
def test_a_stage_that_holds_other_than_its_task_said_is_refused(sql: Connection, claimed: int) -> None:
    number = stage(sql, {"p": ["a", "b"]})
    with pytest.raises(errors.ObjectNotInPrerequisiteState, match="gone or incomplete"):
        publish(sql, {number: claimed})
    assert publish(sql, {number: 2}) == ("published", 2)


def test_attempts_that_do_not_count_are_removed_and_can_write_no_more(sql: Connection) -> None:
    winner, loser = stage(sql, {"p": ["a"]}), stage(sql, {"p": ["a"]})
    publish(sql, {winner: 1})
    assert staged_segments(sql) == 0
    for number in (winner, loser):
        with pytest.raises(errors.ObjectNotInPrerequisiteState, match="is gone"):
            add(sql, number, 1, {"p": ["late"]})
    assert read(sql) == ["a"]


def test_staging_the_same_again_changes_nothing(sql: Connection) -> None:
    number = stage(sql, {"p": ["a"]})
    add(sql, number, 0, {"p": ["a"]})
    assert publish(sql, {number: 1}) == ("published", 1)


def test_giving_up_removes_stages_of_this_run_only(sql: Connection) -> None:
    mine, other = stage(sql, {"p": ["a"]}), stage(sql, {"p": ["b"]}, run="run-2")
    assert value(sql, "SELECT penstock.abort_stages('query', 'run-1', %s)", [mine, other]) == 1
    assert value(sql, "SELECT array_agg(stage_id) FROM penstock.list_stages()") == [other]
    assert staged_segments(sql) == 1


def test_giving_up_after_publishing_changes_nothing(sql: Connection) -> None:
    number = stage(sql, {"p": ["a"]})
    publish(sql, {number: 1})
    assert value(sql, "SELECT penstock.abort_stages('query', 'run-1', %s)", [number]) == 0
    assert read(sql) == ["a"]


def test_a_message_over_the_limit_cannot_be_staged(sql: Connection, client: Client) -> None:
    client.create("q", max_message_bytes=3)
    with pytest.raises(errors.ProgramLimitExceeded, match="4 bytes is over the limit"):
        stage(sql, {"p": ["abcd"]})
    assert staged_segments(sql) == 0


def test_old_stages_are_swept_and_younger_ones_stay(sql: Connection, client: Client) -> None:
    old, young = stage(sql, {"p": ["a"]}), stage(sql, {"p": ["b"]})
    age = "UPDATE penstock.{} SET {} = {} - interval '2 days' WHERE stage_id = %s"
    sql.execute(age.format("stages", "created_at", "created_at").encode(), (old,))
    sql.execute(age.format("stages", "created_at", "created_at").encode(), (young,))
    sql.execute(age.format("staged", "staged_at", "staged_at").encode(), (old,))
    list(client.maintain())
    assert value(sql, "SELECT array_agg(stage_id) FROM penstock.list_stages()") == [young]
    with pytest.raises(errors.ObjectNotInPrerequisiteState, match="gone or incomplete"):
        publish(sql, {old: 1})


def test_above_read_committed_nothing_is_published(connections: Connections, sql: Connection) -> None:
    number = stage(sql, {"p": ["a"]})
    other = connections.open()
    other.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    with pytest.raises(errors.ActiveSqlTransaction):
        publish(other, {number: 1})


def test_a_push_and_a_publication_of_one_partition_wait_for_each_other(
    connections: Connections, sql: Connection
) -> None:
    push(sql)
    first, second = connections.open(), connections.open(autocommit=True)
    publish(first, {stage(sql, {"p": ["a", "b"]}): 2})
    running = Running(second, PUSH_ONE, "p")
    assert running.waits(sql)
    first.commit()
    assert running.value() == 3
    assert read(sql) == ["x", "a", "b", "x"]


def test_a_publication_waits_for_a_push_and_lies_after_it(connections: Connections, sql: Connection) -> None:
    first, second = connections.open(), connections.open(autocommit=True)
    push(first)
    number = stage(sql, {"p": ["a"]})
    running = Running(second, PUBLISH, "query", "run-1", 0, [number], [1])
    assert running.waits(sql)
    first.commit()
    assert running.value() == "published"
    assert read(sql) == ["x", "a"]
    assert verified(sql)


def test_two_publications_of_one_epoch_are_one(connections: Connections, sql: Connection) -> None:
    first, second = connections.open(), connections.open(autocommit=True)
    number = stage(sql, {"p": ["a"]})
    publish(first, {number: 1})
    running = Running(second, PUBLISH, "query", "run-1", 0, [number], [1])
    assert running.waits(sql)
    first.commit()
    assert running.value() == "skipped"
    assert read(sql) == ["a"]


def test_without_the_writers_lock_the_second_publication_fails(connections: Connections, penstock_dsn: str) -> None:
    """The twin of the test above: it can fail."""
    from log.interleaving import mutate

    with Connections(penstock_dsn) as own:
        sql = own.open(autocommit=True)
        mutate(
            sql,
            "publish_stages",
            ("    PERFORM pg_advisory_xact_lock(1885695604, hashtext(writer));\n", ""),
        )
        first, second = own.open(), own.open(autocommit=True)
        number = stage(sql, {"p": ["a"]})
        publish(first, {number: 1})
        running = Running(second, PUBLISH, "query", "run-1", 0, [number], [1])
        assert running.waits(sql)
        first.commit()
        with pytest.raises(psycopg.Error, match=re.compile("gone or incomplete|duplicate key")):
            running.value()


def test_a_group_that_is_made_meanwhile_knows_of_the_publication(connections: Connections, sql: Connection) -> None:
    push(sql)
    first = connections.open()
    publish(first, {stage(sql, {"p": ["a"], "new": ["b"]}): 2})
    sql.execute("SELECT penstock.create_group('q', 'g')")
    sql.execute("SELECT penstock.sweep()")
    first.commit()
    sql.execute("SELECT penstock.sweep()")
    assert value(sql, "SELECT lag FROM penstock.list_groups('q')") == 3
    assert verified(sql)


def test_staging_leaves_the_callers_transaction_as_durable_as_it_was(connections: Connections) -> None:
    caller = connections.open()
    caller.execute("SET synchronous_commit = on")
    number = stage(caller, {"p": ["a"]})
    caller.execute("SELECT penstock.note_epoch('w', 'r', 0, 1)")
    assert number > 0
    assert value(caller, "SELECT current_setting('synchronous_commit')") == "on"


def test_a_writer_that_is_late_holds_up_nobody(connections: Connections, sql: Connection) -> None:
    winner, loser = stage(sql, {"p": ["a"]}), stage(sql, {"p": ["a"]})
    late = connections.open()
    add(late, loser, 1, {"p": ["late"]})
    assert publish(sql, {winner: 1}) == ("published", 1)
    late.commit()
    assert value(sql, "SELECT array_agg(stage_id) FROM penstock.list_stages()") == [loser]
    assert read(sql) == ["a"]
    assert publish(sql, {}, epoch=1) == ("published", 0)
    assert staged_segments(sql) == 0


def test_a_partition_that_is_deleted_meanwhile_begins_anew(connections: Connections, sql: Connection) -> None:
    push(sql)
    first, second = connections.open(), connections.open(autocommit=True)
    first.execute("SELECT penstock.delete_partition('q', 'p')")
    number = stage(sql, {"p": ["a"]})
    running = Running(second, PUBLISH, "query", "run-1", 0, [number], [1])
    assert running.waits(sql)
    first.commit()
    assert running.value() == "published"
    assert read(sql) == ["a"]
    assert verified(sql)
