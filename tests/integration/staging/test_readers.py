"""A reader with positions of its own: what it looks at, how it tells its progress, and what its snapshots keep."""

import pytest
from log.interleaving import push
from psycopg import errors

from databases import Connection, Connections
from penstock import Client, PenstockError

from .steps import CheckpointRefused, note, publish, stage, value

Rows = list[tuple[object, ...]]


def ids(sql: Connection, queue: str = "q") -> dict[str, int]:
    rows = sql.execute("SELECT name, partition_id FROM penstock.list_partitions(%s)", (queue,)).fetchall()
    return dict(rows)


def advance(sql: Connection, partitions: dict[int, int]) -> tuple[int, int]:
    ((moved, busy),) = sql.execute(
        "SELECT * FROM penstock.advance_reader('q', 'spark', %s::bigint[], %s::bigint[])",
        (list(partitions), list(partitions.values())),
    ).fetchall()
    return moved, busy


def lag(sql: Connection) -> int:
    return int(value(sql, "SELECT lag FROM penstock.list_groups('q') WHERE name = 'spark'"))


def save(
    sql: Connection, parent: int, ranges: dict[int, tuple[int, int]], full: bool = False, token: str | None = None
) -> tuple[int, str]:
    if token is None:
        token = value(sql, "SELECT max(token) FROM penstock.snapshots WHERE snapshot_id = %s", parent)
    everything = list(ranges) if full else None
    positions = [end for _, end in ranges.values()] if full else None
    ((number, saved),) = sql.execute(
        "SELECT snapshot_id, snapshot_token FROM penstock.save_snapshot(%s::bigint, %s::text, %s::bigint[],"
        " %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[])",
        (
            parent,
            token,
            list(ranges),
            [start for start, _ in ranges.values()],
            [end for _, end in ranges.values()],
            everything,
            positions,
        ),
    ).fetchall()
    return number, saved


def violations(sql: Connection) -> Rows:
    return sql.execute("SELECT check_name, violations FROM penstock.verify() WHERE violations > 0").fetchall()


def test_lag_follows_what_the_reader_tells(sql: Connection, client: Client) -> None:
    client.push("q", ["a"] * 10, partition="p")
    client.push("q", ["a"] * 5, partition="r")
    sql.execute("SELECT penstock.ensure_reader('q', 'spark')")
    assert lag(sql) == 15
    known = ids(sql)
    assert advance(sql, {known["p"]: 4, known["r"]: 5}) == (2, 0)
    assert lag(sql) == 6
    client.push("q", ["a"], partition="r")
    client.push("q", ["a"], partition="new")
    assert lag(sql) == 8
    assert advance(sql, {known["p"]: 10, known["r"]: 6, ids(sql)["new"]: 1}) == (3, 0)
    assert lag(sql) == 0
    assert violations(sql) == []


def test_positions_only_go_forward_and_not_past_the_head(sql: Connection, client: Client) -> None:
    client.push("q", ["a"] * 10, partition="p")
    number = ids(sql)["p"]
    assert advance(sql, {number: 4}) == (1, 0)
    assert advance(sql, {number: 3}) == (0, 0)
    assert lag(sql) == 6
    assert advance(sql, {number: 99}) == (1, 0)
    assert lag(sql) == 0
    client.push("q", ["a"], partition="p")
    assert lag(sql) == 1
    assert violations(sql) == []


def test_the_journal_of_a_reader_does_not_grow(sql: Connection, client: Client) -> None:
    client.push("q", ["a"] * 50, partition="p")
    number = ids(sql)["p"]
    for offset in range(1, 51):
        advance(sql, {number: offset})
    assert value(sql, "SELECT count(*) FROM penstock.journal") == 1
    assert value(sql, "SELECT count(*) FROM penstock.ready") == 0


def test_a_partition_that_is_being_pushed_to_is_told_later(
    connections: Connections, sql: Connection, client: Client
) -> None:
    client.push("q", ["a"] * 10, partition="p")
    number = ids(sql)["p"]
    sql.execute("SELECT penstock.ensure_reader('q', 'spark')")
    pushing = connections.open()
    push(pushing)
    assert advance(sql, {number: 4}) == (0, 1)
    pushing.commit()
    assert advance(sql, {number: 4}) == (1, 0)
    assert lag(sql) == 7
    assert violations(sql) == []


def test_nobody_pops_with_a_readers_group(sql: Connection, client: Client) -> None:
    client.push("q", "a")
    sql.execute("SELECT penstock.ensure_reader('q', 'spark')")
    with pytest.raises(PenstockError, match="is external"):
        client.pop("q", "spark")


def test_a_group_of_consumers_is_no_readers_group(sql: Connection, client: Client) -> None:
    client.push("q", "a", partition="p")
    client.create_group("q", "spark")
    with pytest.raises(errors.ObjectNotInPrerequisiteState, match="ordered and read by consumers"):
        advance(sql, {ids(sql)["p"]: 1})


def test_retention_waits_for_a_reader(sql: Connection, client: Client) -> None:
    client.create("q", retention_bytes=1)
    for _ in range(4):
        client.push("q", ["a", "b"], partition="p")
    number = ids(sql)["p"]
    advance(sql, {number: 3})
    list(client.maintain())
    assert client.partitions("q")[0].floor == 2


def test_ranges_are_cut_at_segments_into_pages(sql: Connection, client: Client) -> None:
    for _ in range(6):
        client.push("q", [b"x" * 100] * 10, partition="p")
    client.push("q", b"y", partition="r")
    known = ids(sql)
    pages = sql.execute(
        "SELECT * FROM penstock.plan_ranges(%s::bigint[], %s::bigint[], %s::bigint[], 2000)",
        ([known["p"], known["r"]], [5, 0], [58, 1]),
    ).fetchall()
    assert pages == [
        (known["p"], 5, 20, 1500),
        (known["p"], 20, 40, 2000),
        (known["p"], 40, 58, 1800),
        (known["r"], 0, 1, 1),
    ]


def test_ranges_are_read_in_one_call(sql: Connection, client: Client) -> None:
    for _ in range(3):
        client.push("q", [b"ab", b"c"], partition="p")
    client.push("q", b"y", partition="r")
    known = ids(sql)
    rows = sql.execute(
        "SELECT range_position, base_offset, count, convert_from(body, 'UTF8') FROM penstock.read_ranges("
        "%s::bigint[], %s::bigint[], %s::bigint[])",
        ([known["r"], known["p"]], [0, 1], [1, 5]),
    ).fetchall()
    assert rows == [(1, 0, 1, "y"), (2, 1, 1, "c"), (2, 2, 2, "abc"), (2, 4, 1, "ab")]


@pytest.mark.parametrize(("budget", "stop"), [(1, 1), (100, 1), (250, 2), (1000, 10), (1100, 11), (10**9, 30)])
def test_bytes_are_spent_by_messages_and_at_least_one(sql: Connection, client: Client, budget: int, stop: int) -> None:
    for _ in range(3):
        client.push("q", [b"x" * 100] * 10, partition="p")
    spent = sql.execute(
        "SELECT * FROM penstock.spend_bytes(%s::bigint[], '{0}', '{30}', %s)", ([ids(sql)["p"]], budget)
    ).fetchall()
    assert spent == [(stop, stop * 100)]


def test_a_backlog_is_known_by_the_second_also_where_segments_were_merged(sql: Connection, client: Client) -> None:
    for count in (3, 1, 2, 4):
        client.push("q", [b"x" * 10] * count, partition="p")
    # One second for each of the first two pushes, one for both of the others.
    sql.execute(
        "UPDATE penstock.segments"
        " SET created_at = to_timestamp(CASE base_offset WHEN 0 THEN 5 WHEN 3 THEN 6 ELSE 8.5 END)"
    )
    query = "SELECT * FROM penstock.backlog_by_time(%s::bigint[], %s::bigint[], %s::bigint[], %s, %s)"
    number = ids(sql)["p"]

    def backlog(start: int, stop: int, messages: int = 100, pieces: int = 100) -> Rows:
        return sql.execute(query, ([number], [start], [stop], messages, pieces)).fetchall()

    everything = [([1, 1, 1], [0, 3, 4], [3, 1, 6], [30, 10, 60], [5, 6, 8])]
    assert backlog(0, 10) == everything
    assert backlog(1, 9) == [([1, 1, 1], [1, 3, 4], [2, 1, 5], [20, 10, 50], [5, 6, 8])]
    assert backlog(0, 10, messages=4) == [([1, 1], [0, 3], [3, 1], [30, 10], [5, 6])]
    assert backlog(0, 10, pieces=2) == [([1, 1], [0, 3], [3, 1], [30, 10], [5, 6])]
    sql.execute("SELECT penstock.merge_segments(%s, 2)", (number,))
    assert value(sql, "SELECT cardinality(run_counts) FROM penstock.segments WHERE run_counts IS NOT NULL") == 3
    assert backlog(0, 10) == everything
    assert backlog(3, 9) == [([1, 1], [3, 4], [1, 5], [10, 50], [6, 8])]
    assert backlog(0, 10, pieces=1) == [([1], [0], [3], [30], [5])]


def test_a_chain_of_snapshots_leads_back_to_all_positions(sql: Connection) -> None:
    first = save(sql, 0, {1: (0, 5), 2: (0, 7)}, full=True)
    second = save(sql, first[0], {1: (5, 6)})
    third = save(sql, second[0], {3: (0, 1)})
    query = "SELECT snapshot_id, depth, partition_ids, ends, all_positions FROM penstock.snapshot_chain(%s, %s, %s)"
    assert sql.execute(query.encode(), (*third, None)).fetchall() == [
        (third[0], 2, [3], [1], None),
        (second[0], 1, [1], [6], None),
        (first[0], 0, [1, 2], [5, 7], [5, 7]),
    ]
    assert sql.execute(query.encode(), (*third, first[0])).fetchall() == [
        (third[0], 2, [3], [1], None),
        (second[0], 1, [1], [6], None),
    ]
    assert len(sql.execute(query.encode(), (*second, 0)).fetchall()) == 2


def test_an_unknown_snapshot_is_refused(sql: Connection) -> None:
    known, _ = save(sql, 0, {1: (0, 5)}, full=True)
    for number, token in ((known + 1, "00000000"), (known, "00000000")):
        with pytest.raises(CheckpointRefused, match="there is no snapshot"):
            sql.execute("SELECT * FROM penstock.snapshot_chain(%s, %s, NULL)", (number, token))
    with pytest.raises(CheckpointRefused, match="there is no snapshot"):
        save(sql, known + 1, {1: (5, 6)})


def test_snapshots_far_back_are_removed(sql: Connection) -> None:
    first, _ = save(sql, 0, {1: (0, 5)}, full=True)
    other, _ = save(sql, 0, {1: (0, 5)}, full=True)
    second, _ = save(sql, first, {1: (5, 6)})
    sql.execute("UPDATE penstock.snapshots SET depth = 1002 WHERE snapshot_id = %s", (second,))
    third, _ = save(sql, second, {1: (6, 7)})
    left = sql.execute("SELECT snapshot_id FROM penstock.snapshots ORDER BY 1").fetchall()
    assert left == [(other,), (second,), (third,)]


def test_the_snapshot_that_comes_next_is_found_again_the_published_one_first(sql: Connection) -> None:
    first, _ = save(sql, 0, {1: (0, 5)}, full=True)
    query = "SELECT * FROM penstock.next_snapshot(%s)"
    assert sql.execute(query.encode(), (first,)).fetchall() == []
    published, newest = save(sql, first, {1: (5, 6)}), save(sql, first, {1: (5, 8)})
    assert sql.execute(query.encode(), (first,)).fetchall() == [newest]
    note(sql, published[0])
    publish(sql, {stage(sql, {"p": ["a"]}): 1})
    assert sql.execute(query.encode(), (first,)).fetchall() == [published]


def test_a_snapshot_is_saved_only_after_one_with_the_same_token(sql: Connection) -> None:
    known, _ = save(sql, 0, {1: (0, 5)}, full=True)
    with pytest.raises(CheckpointRefused, match=f"no snapshot {known} with token 00000000"):
        save(sql, known, {1: (5, 6)}, token="00000000")


def test_snapshots_of_a_query_that_nobody_goes_on_with_are_swept_away(sql: Connection) -> None:
    abandoned, idle, busy = (save(sql, 0, {1: (0, 5)}, full=True)[0] for _ in range(3))
    sql.execute("UPDATE penstock.snapshots SET created_at = created_at - interval '91 days'")
    child, _ = save(sql, busy, {1: (5, 6)})
    sql.execute("SELECT penstock.keep_snapshot(%s)", (idle,))
    sql.execute("SELECT penstock.sweep_stages()")
    left = sql.execute("SELECT snapshot_id FROM penstock.snapshots ORDER BY 1").fetchall()
    assert left == [(idle,), (busy,), (child,)]
    assert abandoned < idle


def told(sql: Connection, offset: int, lineage: int, *, starts: bool = False) -> tuple[int, int]:
    ((moved, busy),) = sql.execute(
        "SELECT * FROM penstock.advance_reader('q', 'spark', %s::bigint[], %s::bigint[], %s::bigint, %s::boolean)",
        ([ids(sql)["p"]], [offset], lineage, starts),
    ).fetchall()
    return moved, busy


def test_a_group_follows_the_query_that_started_last_and_refuses_the_other(sql: Connection, client: Client) -> None:
    client.push("q", ["a"] * 10, partition="p")
    assert told(sql, 8, 1, starts=True) == (1, 0)
    assert told(sql, 2, 2, starts=True) == (1, 0)
    assert lag(sql) == 8
    with pytest.raises(errors.ObjectNotInPrerequisiteState, match="was taken over by another query"):
        told(sql, 9, 1)
    assert told(sql, 3, 2) == (1, 0)
    assert lag(sql) == 7
    assert violations(sql) == []


def test_retention_waits_for_a_slower_query_that_took_the_group_over(sql: Connection, client: Client) -> None:
    client.create("q", retention_bytes=1)
    for _ in range(4):
        client.push("q", ["a", "b"], partition="p")
    told(sql, 8, 1, starts=True)
    told(sql, 2, 2, starts=True)
    list(client.maintain())
    assert client.partitions("q")[0].floor == 2


def test_a_source_sees_the_queues_that_match_and_no_private_lanes(sql: Connection, client: Client) -> None:
    client.push("orders", ["a", "b"], partition="p")
    client.push("orders_old", "a", partition="p")
    client.push("my_orders", "a", partition="p")
    query = "SELECT heads FROM penstock.source_heads(%s::text[], %s::text)"
    assert sql.execute(query.encode(), (None, "orders.*")).fetchall() in ([([2, 1],)], [([1, 2],)])
    assert sql.execute(query.encode(), (["orders"], None)).fetchall() == [([2],)]
    with pytest.raises(errors.UndefinedObject, match='no queue "nope"'):
        sql.execute(query.encode(), (["orders", "nope"], None))
