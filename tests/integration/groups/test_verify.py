"""Every check of verify can fail: whatever is wrong with the tables is found, by the check that is named after it."""

from collections.abc import Sequence
from datetime import UTC, datetime

import pytest
from log.interleaving import push

from databases import Connection
from penstock.broker.operations.groups import ConfigureGroup, CreateGroup, Seek, Verify

from .steps import ack, create_group, drain, must_pop, nack, pass_time, push_some, run, sweep, violations

NOBODY = "999999999"


def arrange(sql: Connection) -> None:
    """Make four groups, of all messages, of new ones and from a time on; and partitions: ready, held and idle."""
    create_group(sql)
    create_group(sql, "s", "shared")
    run(sql, CreateGroup("q", "n", "ordered", "new"))
    run(sql, CreateGroup("q", "t", "ordered", "time", datetime(2026, 1, 1, tzinfo=UTC)))
    for _ in range(3):
        push_some(sql, 10, "idle")
    drain(sql), drain(sql, "s"), drain(sql, "n"), drain(sql, "t")
    for _ in range(3):
        push_some(sql, 10, "held")
    must_pop(sql, most=5), must_pop(sql, "s", most=5)
    for _ in range(3):
        push_some(sql, 10, "ready")
    assert violations(sql) == {}


def of(partition: str, group: str = "g") -> str:
    """Return the condition that picks the newest journal row."""
    return (
        f"(group_id, partition_id, version) = (SELECT j.group_id, j.partition_id, j.version FROM penstock.journal j"
        f" JOIN penstock.partitions p USING (partition_id) JOIN penstock.consumer_groups g USING (group_id)"
        f" WHERE p.name = '{partition}' AND g.name = '{group}' ORDER BY j.version DESC LIMIT 1)"
    )


SEGMENT = "partition_id = (SELECT partition_id FROM penstock.partitions WHERE name = 'ready') AND base_offset = "
HELD = "group_id = (SELECT group_id FROM penstock.consumer_groups WHERE name = 's')"
SCHEDULE = (
    "INSERT INTO penstock.scheduled"
    " (scheduled_id, queue_id, partition_id, due_at, created_at, count, bytes, body, ends)"
    " SELECT 1, queue_id, {}, clock_timestamp(), clock_timestamp(), 1, 1, 'x', '\\x01000000' FROM penstock.queues"
)
REMEMBER = (
    "INSERT INTO penstock.dedupe_ids (partition_id, dedupe_id, queue_id, seen_at, message_offset, scheduled_id)"
    " SELECT {}, 'id', queue_id, clock_timestamp(), {}, {} FROM penstock.partitions WHERE name = 'idle'"
)
KEY = (
    "INSERT INTO penstock.unique_keys (queue_id, unique_key, partition_id, message_offset, scheduled_id)"
    " SELECT queue_id, 'k', {}, {}, {} FROM penstock.partitions WHERE name = 'idle'"
)
MOVE = (
    "INSERT INTO penstock.unique_moves (scheduled_id, partition_id, message_offset, created_at)"
    " SELECT 1, {}, {}, clock_timestamp() FROM penstock.partitions WHERE name = 'idle'"
)
ARCHIVE = (
    "WITH a AS (INSERT INTO penstock.archive_files (file_id, archive_id, path, bytes, checksum) OVERRIDING SYSTEM VALUE"
    " VALUES (1, 1, 'a', 1, '') ON CONFLICT DO NOTHING)"
    " INSERT INTO penstock.archived (partition_id, start_offset, stop_offset, unbroken_from, file_id, row_group,"
    " first_row, bytes, first_time, last_time)"
    " SELECT {}, {}, {}, 0, {}, 0, 0, 1, clock_timestamp(), clock_timestamp()"
    " FROM penstock.partitions WHERE name = 'idle'"
)
# What is done to the tables, and what must be found. Some damage is seen from two sides.
DAMAGE: list[tuple[str, Sequence[str], set[str]]] = [
    ("a unique key of no partition", [KEY.format("999", "0", "NULL")], {"orphan_unique_keys"}),
    ("a unique key of no message", [KEY.format("partition_id", "999", "NULL")], {"orphan_unique_keys"}),
    ("a unique key of nothing", [KEY.format("NULL", "NULL", "NULL")], {"orphan_unique_keys"}),
    ("a unique key of two messages", [KEY.format("partition_id", "0", "1")], {"orphan_unique_keys"}),
    ("a note on a message that is not there", [MOVE.format("partition_id", "999")], {"orphan_unique_moves"}),
    (
        "a note on a message that is still scheduled",
        [
            SCHEDULE.format("(SELECT partition_id FROM penstock.partitions WHERE name = 'idle')"),
            MOVE.format("partition_id", "0"),
        ],
        {"orphan_unique_moves"},
    ),
    (
        "a segment lost a part of its ends",
        [f"UPDATE penstock.segments SET ends = substr(ends, 5) WHERE {SEGMENT} 10"],
        {"segments_of_wrong_shape"},
    ),
    (
        "a message ends after the last one",
        [f"UPDATE penstock.segments SET ends = '\\x63000000' || substr(ends, 5) WHERE {SEGMENT} 10"],
        {"segments_of_wrong_shape"},
    ),
    (
        "a segment lost a part of its values",
        [
            "UPDATE penstock.segments SET body = substr(body, 1, 1), body_compressed = substr(body_compressed, 1, 1)"
            f" WHERE {SEGMENT} 10"
        ],
        {"segments_of_wrong_shape"},
    ),
    (
        "a segment has keys and not where they end",
        [f"UPDATE penstock.segments SET keys = 'x' WHERE {SEGMENT} 10"],
        {"segments_of_wrong_shape"},
    ),
    ("a segment is missing", [f"DELETE FROM penstock.segments WHERE {SEGMENT} 10"], {"gaps"}),
    ("the first segment is missing", [f"DELETE FROM penstock.segments WHERE {SEGMENT} 0"], {"gaps"}),
    (
        "a segment begins before the last one ends",
        [f"UPDATE penstock.segments SET base_offset = 19 WHERE {SEGMENT} 20"],
        {"overlaps"},
    ),
    (
        "a segment reaches past the head",
        [
            "UPDATE penstock.segments SET base_offset = 12, count = 1, ends = '\\x01000000', body = 'x',"
            f" body_compressed = NULL WHERE {SEGMENT} 20"
        ],
        {"overlaps", "newer_messages_count"},
    ),
    (
        "a time goes back",
        [f"UPDATE penstock.segments SET created_at = created_at - interval '1 hour' WHERE {SEGMENT} 10"],
        {"times_that_go_back"},
    ),
    (
        "a stub lies between messages",
        [f"UPDATE penstock.segments SET ends = NULL, body = NULL, body_compressed = NULL WHERE {SEGMENT} 10"],
        {"stubs_inside"},
    ),
    (
        "a segment is of no partition",
        [
            f"INSERT INTO penstock.segments (partition_id, base_offset, created_at, count, bytes, body, ends)"
            f" VALUES ({NOBODY}, 0, clock_timestamp(), 1, 1, 'x', '\\x01000000')"
        ],
        {"orphan_segments"},
    ),
    (
        "a partition is of no queue",
        [f"INSERT INTO penstock.partitions (queue_id, name) VALUES ({NOBODY}, 'stray')"],
        {"orphan_partitions"},
    ),
    (
        "a lane is of no group",
        [
            "INSERT INTO penstock.partitions (queue_id, name, lane_of)"
            f" SELECT queue_id, 'lane', {NOBODY} FROM penstock.queues"
        ],
        {"orphan_partitions"},
    ),
    (
        "a partition with messages is of no queue",
        [
            f"INSERT INTO penstock.partitions (queue_id, name) VALUES ({NOBODY}, 'stray')",
            "INSERT INTO penstock.segments (partition_id, base_offset, created_at, count, bytes, body, ends)"
            " SELECT partition_id, 0, clock_timestamp(), 1, 1, 'x', '\\x01000000' FROM penstock.partitions"
            " WHERE name = 'stray'",
        ],
        {"orphan_partitions", "partitions_with_stale_lookup"},
    ),
    (
        "a claim has no lease",
        [f"UPDATE penstock.journal SET lease_id = NULL WHERE {of('held')}"],
        {"journal_rows_out_of_order"},
    ),
    (
        "a claim has no deadline",
        [f"UPDATE penstock.journal SET due_at = NULL WHERE {of('held')}"],
        {"journal_rows_out_of_order"},
    ),
    (
        "a claim never ends",
        [f"UPDATE penstock.journal SET due_at = 'infinity' WHERE {of('held')}"],
        {"journal_rows_out_of_order"},
    ),
    (
        "a position is before the first message",
        [f"UPDATE penstock.journal SET committed = -1 WHERE {of('ready')}"],
        {"journal_rows_out_of_order"},
    ),
    (
        "an entry is where nobody looks",
        ["UPDATE penstock.ready SET priority = 77"],
        {"entries_at_unknown_priority"},
    ),
    (
        "a journal is of no group",
        [
            f"INSERT INTO penstock.journal (group_id, partition_id, version, state, committed, claimed_to)"
            f" SELECT {NOBODY}, partition_id, 1, 'i', 30, 30 FROM penstock.partitions WHERE name = 'idle'"
        ],
        {"orphan_journals"},
    ),
    (
        "a journal is of no partition",
        [
            f"INSERT INTO penstock.journal (group_id, partition_id, version, state, committed, claimed_to)"
            f" SELECT group_id, {NOBODY}, 1, 'i', 0, 0 FROM penstock.consumer_groups"
        ],
        {"orphan_journals"},
    ),
    (
        "a position is past the head",
        [f"UPDATE penstock.journal SET committed = 31, claimed_to = 31 WHERE {of('idle')}"],
        {"positions_out_of_order"},
    ),
    (
        "a group is idle where there are messages",
        [f"UPDATE penstock.journal SET committed = 29, claimed_to = 29 WHERE {of('idle')}"],
        {"work_not_ready"},
    ),
    (
        "a group does not know a partition",
        [
            "DELETE FROM penstock.journal"
            " WHERE partition_id = (SELECT partition_id FROM penstock.partitions WHERE name = 'idle')"
        ],
        {"work_not_taken_up"},
    ),
    ("an entry is missing", ["DELETE FROM penstock.ready WHERE lo IS NULL"], {"ready_without_entry"}),
    (
        "an entry is nobody's",
        [
            "INSERT INTO penstock.ready (group_id, priority, seq, partition_id)"
            " SELECT group_id, 0, 77777777, partition_id FROM penstock.consumer_groups, penstock.partitions LIMIT 1"
        ],
        {"entries_of_nobody"},
    ),
    ("two ranges overlap", [f"UPDATE penstock.claims SET hi = hi + 1 WHERE {HELD}"], {"ranges_out_of_order"}),
    (
        "a range lies past what was handed out",
        [
            f"INSERT INTO penstock.claims (group_id, partition_id, lo, hi, attempt, due_at)"
            f" SELECT group_id, partition_id, 500, 501, 1, clock_timestamp() FROM penstock.claims WHERE {HELD}"
        ],
        {"ranges_out_of_order"},
    ),
    (
        "a claim is of no partition",
        [
            f"INSERT INTO penstock.claims (group_id, partition_id, lo, hi, attempt, due_at)"
            f" SELECT group_id, {NOBODY}, 0, 1, 1, clock_timestamp() FROM penstock.claims WHERE {HELD}"
        ],
        {"ranges_out_of_order"},
    ),
    (
        "an ordered group has a shared range",
        [
            "INSERT INTO penstock.claims (group_id, partition_id, lo, hi, attempt, due_at)"
            f" SELECT group_id, partition_id, 0, 1, 1, clock_timestamp() FROM penstock.journal WHERE {of('held')}"
        ],
        {"ranges_of_other_groups"},
    ),
    (
        "rows of the journal are left where no timer leads to",
        [
            "INSERT INTO penstock.journal (group_id, partition_id, version, state, committed, claimed_to)"
            " SELECT group_id, partition_id, version - n, state, committed, claimed_to FROM penstock.journal,"
            f" generate_series(100, 170) n WHERE {of('idle')}",
        ],
        {"journals_not_trimmed"},
    ),
    (
        "a message is offered again after all its attempts",
        [f"UPDATE penstock.journal SET attempt = 5 WHERE {of('ready')}"],
        {"attempts_above_the_limit"},
    ),
    (
        "a message is held after all its attempts",
        [f"UPDATE penstock.journal SET attempt = 6 WHERE {of('held')}"],
        {"attempts_above_the_limit"},
    ),
    (
        "a shared message is held after all its attempts",
        [f"UPDATE penstock.claims SET attempt = 6 WHERE {HELD}"],
        {"attempts_above_the_limit"},
    ),
    (
        "a group of new messages does not know of them",
        [
            "WITH gone AS (DELETE FROM penstock.journal j USING penstock.consumer_groups g"
            " WHERE g.group_id = j.group_id AND g.name = 'n' RETURNING g.group_id)"
            " DELETE FROM penstock.ready y USING gone WHERE y.group_id = gone.group_id"
        ],
        {"work_not_taken_up"},
    ),
    (
        "a group from a time on does not know of its messages",
        [
            "WITH gone AS (DELETE FROM penstock.journal j USING penstock.consumer_groups g"
            " WHERE g.group_id = j.group_id AND g.name = 't' RETURNING g.group_id)"
            " DELETE FROM penstock.ready y USING gone WHERE y.group_id = gone.group_id"
        ],
        {"work_not_taken_up"},
    ),
    ("what is archived is of no partition", [ARCHIVE.format(NOBODY, 0, 1, 1)], {"archives_of_wrong_shape"}),
    ("what is archived is past the head", [ARCHIVE.format("partition_id", 30, 31, 1)], {"archives_of_wrong_shape"}),
    ("what is archived is in no file", [ARCHIVE.format("partition_id", 0, 1, 2)], {"archives_of_wrong_shape"}),
    (
        "what is archived overlaps",
        [ARCHIVE.format("partition_id", 0, 2, 1), ARCHIVE.format("partition_id", 1, 3, 1)],
        {"archives_of_wrong_shape"},
    ),
    ("what is scheduled is of no partition", [SCHEDULE.format(NOBODY)], {"orphan_schedules"}),
    ("a dedupe id is of no partition", [REMEMBER.format(NOBODY, "0", "NULL")], {"orphan_dedupe_ids"}),
    ("a dedupe id is of no message", [REMEMBER.format("partition_id", "30", "NULL")], {"orphan_dedupe_ids"}),
    ("a dedupe id waits for nothing", [REMEMBER.format("partition_id", "NULL", "7")], {"orphan_dedupe_ids"}),
    (
        "a group began too late",
        [
            "UPDATE penstock.consumer_groups SET subscription = 'new', created_at = '-infinity' WHERE name = 'g'",
            "INSERT INTO penstock.beginnings SELECT group_id, partition_id, 7 FROM penstock.consumer_groups g,"
            " penstock.partitions p WHERE p.name = 'ready' AND g.name = 'g'",
        ],
        {"messages_passed_over"},
    ),
    (
        "a timer was put off",
        [
            "INSERT INTO penstock.failing_timers (kind, group_id, partition_id, place, retry_at, sqlstate, error)"
            " VALUES ('sweep', 0, 0, 0, clock_timestamp(), 'XX001', 'oops')"
        ],
        {"timers_put_off"},
    ),
    (
        "a limit is of no group",
        [
            "INSERT INTO penstock.slots (group_id, key, lease_id, partition_id, messages, offsets)"
            " VALUES (0, 'k', gen_random_uuid(), 1, 1, '{[0,1)}')"
        ],
        {"orphan_limits"},
    ),
    (
        "a window is of no group",
        ["INSERT INTO penstock.warm_leases (group_id, epoch, dispatcher, deadline) VALUES (0, 1, 'd', now())"],
        {"orphan_warm_leases"},
    ),
    ("a note is of no group", ["INSERT INTO penstock.item_notes VALUES (0, 1, 0)"], {"orphan_items"}),
    (
        "a step has no note",
        [
            "INSERT INTO penstock.item_steps SELECT group_id, partition_id, 0, 's', '1'"
            " FROM penstock.consumer_groups g, penstock.partitions p WHERE p.name = 'ready' AND g.name = 'g'",
        ],
        {"orphan_items"},
    ),
    (
        "a result is of no message",
        [
            "INSERT INTO penstock.item_results (group_id, partition_id, message_offset, state, expires_at)"
            " SELECT group_id, partition_id, 1000, 'returned', now() FROM penstock.consumer_groups g,"
            " penstock.partitions p WHERE p.name = 'ready' AND g.name = 'g'",
        ],
        {"orphan_items"},
    ),
    (
        "what is cancelled is of no partition",
        [
            "INSERT INTO penstock.cancellations SELECT group_id, 1000000, 0 FROM penstock.consumer_groups"
            " WHERE name = 'g'",
        ],
        {"orphan_items"},
    ),
    ("a dedupe id means nothing", [REMEMBER.format("partition_id", "NULL", "NULL")], {"orphan_dedupe_ids"}),
]


@pytest.mark.parametrize(("damage", "found"), [case[1:] for case in DAMAGE], ids=[case[0] for case in DAMAGE])
def test_verify_finds_that(sql: Connection, damage: Sequence[str], found: set[str]) -> None:
    arrange(sql)
    for statement in damage:
        assert sql.execute(statement.encode()).rowcount > 0
    assert set(violations(sql)) == found


def test_every_check_has_its_damage(sql: Connection) -> None:
    checks = {check.name for check in run(sql, Verify())}
    assert checks == set().union(*(found for *_, found in DAMAGE))


def test_verify_finds_nothing_in_a_life_full_of_changes(sql: Connection) -> None:
    arrange(sql)
    push(sql, "ready")
    ack(sql, must_pop(sql))
    pass_time(sql)
    sweep(sql)
    assert violations(sql) == {}
    run(sql, Seek("q", "g", position="earliest"))
    run(sql, Seek("q", "s", offset=15))
    assert violations(sql) == {}
    sql.execute("SELECT penstock.purge('q')")
    assert violations(sql) == {}
    drain(sql), drain(sql, "s")
    assert violations(sql) == {}


@pytest.mark.parametrize("mode", ["ordered", "shared"])
def test_verify_finds_nothing_in_attempts_of_the_time_before_a_limit_was_lowered(sql: Connection, mode: str) -> None:
    create_group(sql, mode=mode, max_attempts=9)
    push_some(sql, 1)
    for _ in range(4):
        nack(sql, must_pop(sql))
    run(sql, ConfigureGroup("q", "g", {"max_attempts": 2}))
    assert violations(sql) == {}
    must_pop(sql)
    assert violations(sql) == {}
    # A restore writes all rows anew, in any order.
    sql.execute("UPDATE penstock.segments SET count = count")
    assert violations(sql) == {}


def test_verify_finds_nothing_in_a_partition_whose_first_messages_were_dropped(sql: Connection) -> None:
    for isolation in ("READ COMMITTED", "REPEATABLE READ"):
        with sql.transaction():
            sql.execute(f"SET TRANSACTION ISOLATION LEVEL {isolation}".encode())
            push(sql, isolation)
        for _ in range(3):
            push(sql, isolation)
        sql.execute("SELECT penstock.purge('q', %s)", (isolation,))
        push(sql, isolation)
        sql.execute("SELECT penstock.purge('q', %s)", (isolation,))
    assert violations(sql) == {}


def test_verify_finds_nothing_in_groups_that_came_after_the_messages(sql: Connection) -> None:
    push_some(sql, 10)
    run(sql, CreateGroup("q", "n", "ordered", "new"))
    run(sql, CreateGroup("q", "t", "ordered", "time", datetime(2100, 1, 1, tzinfo=UTC)))
    assert violations(sql) == {}
    push_some(sql, 10)
    assert len(must_pop(sql, "n").messages) == 10
    assert violations(sql) == {}
