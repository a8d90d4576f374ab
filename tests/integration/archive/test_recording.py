"""A run is recorded once, after those before it, and never when another one has begun."""

import psycopg
import pytest
from log.interleaving import mutate
from psycopg import errors

from databases import Connection, Connections

from .steps import archived_to, begin, push, record

RANGES = "SELECT partition_name, start_offset, stop_offset FROM penstock.archive_ranges('q', %s::timestamptz)"


def floors(sql: Connection) -> list[int]:
    """Return from where on the partitions of the queue can be read."""
    return list(
        sql.execute(
            "SELECT unnest(penstock.archived_floors(h.partition_ids, h.floors))"
            " FROM penstock.source_heads(ARRAY['q'], NULL, true) h"
        ).fetchall()[0]
    )


def test_what_can_be_archived_are_whole_segments_that_are_old_enough(sql: Connection) -> None:
    sql.execute("SELECT penstock.push('q', ARRAY['a', 'b', 'c']::bytea[], 'p')")
    push(sql, 2)
    ((moment,),) = sql.execute("SELECT clock_timestamp()").fetchall()
    push(sql)
    push(sql, partition="new")
    assert sql.execute(RANGES, (moment,)).fetchall() == [("p", 0, 5)]
    assert sorted(sql.execute(RANGES, (None,)).fetchall()) == [("new", 0, 1), ("p", 0, 6)]
    # A merged segment is older than a moment when all of it is.
    sql.execute("SELECT penstock.merge_segments(penstock.find_partition('q', 'p'), 2)")
    ((middle,),) = sql.execute("SELECT run_times[2] FROM penstock.segments WHERE run_times IS NOT NULL").fetchall()
    assert sql.execute(RANGES, (middle,)).fetchall() == []
    assert record(sql, begin(sql), (0, 5)) == 5
    assert sql.execute(RANGES, (moment,)).fetchall() == []
    assert sorted(sql.execute(RANGES, (None,)).fetchall()) == [("new", 0, 1), ("p", 5, 6)]


def test_runs_follow_each_other_without_gap_or_overlap(sql: Connection) -> None:
    push(sql, 10)
    run = begin(sql)
    for wrong in ((1, 3), (0, 11)):
        with pytest.raises(errors.ObjectNotInPrerequisiteState, match="do not follow"):
            record(sql, run, wrong)
    with pytest.raises(errors.ObjectNotInPrerequisiteState, match="do not follow"):
        record(sql, run, (0, 3), (4, 5))
    assert archived_to(sql) == 0
    assert record(sql, run, (0, 3), (3, 5)) == 5
    # Asked again, because nobody knows whether it was heard.
    assert record(sql, run, (0, 3), (3, 5)) == 5
    second = begin(sql)
    for wrong in ((4, 6), (6, 7), (0, 10)):
        with pytest.raises(errors.ObjectNotInPrerequisiteState, match="do not follow"):
            record(sql, second, wrong)
    assert record(sql, second, (5, 10)) == 5
    assert archived_to(sql) == 10
    sql.execute("SELECT * FROM penstock.drop_archived('q')")
    assert floors(sql) == [0]


def test_after_a_gap_the_archive_is_read_from_the_gap_on(sql: Connection) -> None:
    push(sql, 4)
    record(sql, begin(sql), (0, 2))
    # Two messages are lost that were never archived.
    sql.execute("SELECT penstock.purge('q')")
    push(sql, 2)
    assert floors(sql) == [4]
    record(sql, begin(sql), (4, 5))
    record(sql, begin(sql), (5, 6))
    sql.execute("SELECT penstock.purge('q')")
    assert floors(sql) == [4]
    assert sql.execute("SELECT sum(violations) FROM penstock.verify()").fetchall() == [(0,)]


def test_a_partition_that_was_deleted_meanwhile_refuses_all(sql: Connection) -> None:
    push(sql, 2)
    run = begin(sql)
    ((number,),) = sql.execute("SELECT penstock.find_partition('q', 'p')").fetchall()
    sql.execute("SELECT penstock.delete_partition('q', 'p')")
    push(sql, 2)
    with pytest.raises(errors.ObjectNotInPrerequisiteState, match="do not follow"):
        sql.execute(
            "SELECT penstock.record_archive(%s, ARRAY['a'], ARRAY[1]::bigint[], ARRAY['s'], ARRAY[%s]::bigint[],"
            " ARRAY[0]::bigint[], ARRAY[2]::bigint[], ARRAY[1], ARRAY[0], ARRAY[0]::bigint[], ARRAY[1]::bigint[],"
            " ARRAY[now()], ARRAY[now()])",
            (run, number),
        )
    assert archived_to(sql) == 0
    with pytest.raises(errors.InvalidParameterValue, match="of one length"):
        sql.execute(
            "SELECT penstock.record_archive('x', ARRAY['a'], '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}',"
            " '{}', '{}')"
        )


def test_what_is_deleted_is_archived_no_more(sql: Connection) -> None:
    push(sql, 2)
    record(sql, begin(sql), (0, 2))
    sql.execute("SELECT penstock.delete_queue('q')")
    for table in (b"archives", b"archive_files", b"archived"):
        assert sql.execute(b"SELECT count(*) FROM penstock." + table).fetchall() == [(0,)]


def takes_over(connections: Connections) -> bool:
    """Two runs, of which the first has lost its connection and comes back: return whether it is refused."""
    first, second, sql = (connections.open(autocommit=True) for _ in range(3))
    push(sql, 4)
    run = begin(first)
    with pytest.raises(errors.ObjectInUse):
        begin(second)
    assert sql.execute("SELECT pg_terminate_backend(%s, 10000)", (first.info.backend_pid,)).fetchall() == [(True,)]
    taken = second.execute("SELECT run, left_runs, left_locations FROM penstock.begin_archive('q', '/else')").fetchall()
    assert taken[0][1:] == ([run], ["/somewhere"])
    try:
        record(sql, run, (0, 4))
    except errors.ObjectNotInPrerequisiteState:
        record(second, taken[0][0], (0, 4))
        return True
    return False


def test_a_run_that_lost_the_queue_cannot_record(connections: Connections, sql: Connection) -> None:
    assert takes_over(connections)
    assert archived_to(sql) == 4


def test_without_giving_up_it_could(penstock_dsn: str) -> None:
    with Connections(penstock_dsn) as fresh:
        mutate(fresh.open(autocommit=True), "record_archive", ("NOT FOUND OR archive.given_up", "NOT FOUND"))
        assert not takes_over(fresh)


def test_what_was_given_up_is_told_until_it_is_forgotten(sql: Connection, dsn: str) -> None:
    push(sql)
    runs = [begin(sql) for _ in range(3)]
    left = "SELECT left_runs FROM penstock.begin_archive('q', '/somewhere')"
    assert sql.execute(left).fetchall() == [(runs,)]
    assert sql.execute("SELECT penstock.forget_archive(%s)", (runs[1],)).fetchall() == [(True,)]
    assert sql.execute(left).fetchall()[0][0][:2] == [runs[0], runs[2]]
    run = begin(sql)
    record(sql, run, (0, 1))
    # One that counts is never forgotten.
    assert sql.execute("SELECT penstock.forget_archive(%s)", (run,)).fetchall() == [(False,)]
    with pytest.raises(errors.UndefinedObject), psycopg.connect(dsn) as other:
        begin(other, "nope")
