"""Bounded reads for people: what they find, how far they say that they looked, and that they go by the index."""

from datetime import UTC, datetime, timedelta

import pytest

from databases import Connection
from penstock import Client
from penstock.broker.operations.browsing import GetOutline, ListTotals, MapLag, SearchPartitions
from penstock.errors import InvalidInput, NotFound


@pytest.fixture
def wide(client: Client) -> Client:
    """A queue of 30 partitions, in which one has 7 messages and the others one."""
    client.create("q")
    client.create_group("q", "g")
    client.push_many("q", [(f"lane {n:02}", b"1") for n in range(30)])
    client.push("q", [b"1"] * 6, partition="lane 17")
    return client


def test_partitions_are_sorted_by_lag_and_paged(wide: Client) -> None:
    first = wide.run(SearchPartitions("q", "g", sort="lag", limit=10))
    second = wide.run(SearchPartitions("q", "g", sort="lag", limit=10, skip=10))

    assert [(each.name, each.lag) for each in first.partitions[:2]] == [("lane 17", 7), ("lane 00", 1)]
    assert first.looked == 30
    assert {each.name for each in first.partitions}.isdisjoint(each.name for each in second.partitions)


def test_what_is_acknowledged_is_no_lag(wide: Client) -> None:
    batch = wide.pop("q", "g", partition="lane 17", max_messages=5)
    assert batch is not None
    batch.ack()
    found = wide.run(SearchPartitions("q", "g", search="lane 17", sort="lag"))
    assert [(each.lag, each.committed, each.head) for each in found.partitions] == [(2, 5, 7)]


def test_a_search_by_name_says_how_far_it_looked_and_goes_on_there(wide: Client) -> None:
    found = wide.run(SearchPartitions("q", search="LANE 2", max_look=25))
    assert [each.name for each in found.partitions] == [f"lane 2{n}" for n in range(5)]
    assert (found.looked, found.looked_to) == (25, "lane 24")

    rest = wide.run(SearchPartitions("q", search="LANE 2", after=found.looked_to))
    assert [each.name for each in rest.partitions] == [f"lane 2{n}" for n in range(5, 10)]
    assert (rest.looked, rest.looked_to) == (5, None)


def test_a_search_without_a_group_knows_no_lag(wide: Client) -> None:
    found = wide.run(SearchPartitions("q", limit=1))
    assert [(each.lag, each.committed, each.state) for each in found.partitions] == [(None, None, None)]


def test_the_newest_partitions_come_first(wide: Client) -> None:
    wide.push("q", b"1", partition="lane 03")
    found = wide.run(SearchPartitions("q", sort="newest", limit=1))
    assert [each.name for each in found.partitions] == ["lane 03"]


def test_the_lag_of_a_shared_group_has_its_ranges_too(client: Client) -> None:
    client.create_group("q", "g", mode="shared")
    client.push("q", [b"1"] * 20, partition="p")
    held = client.pop("q", "g", max_messages=5)
    assert held is not None
    found = client.run(SearchPartitions("q", "g", sort="lag"))
    assert [each.lag for each in found.partitions] == [client.lag("q", "g")] == [20]


def test_a_map_of_lag_deals_partitions_into_cells(wide: Client) -> None:
    cells = wide.run(MapLag("q", "g", cells=3))
    assert [(each.cell, each.partitions) for each in cells] == [(1, 10), (2, 10), (3, 10)]
    assert sum(each.lag for each in cells) == wide.lag("q", "g") == 36
    assert (cells[1].worst, cells[1].worst_lag) == ("lane 17", 7)


def test_the_outline_has_settings_and_samples_of_all_groups(wide: Client) -> None:
    [queue] = wide.run(GetOutline())
    assert (queue.name, [(group.name, group.lag, group.sampled_at) for group in queue.groups]) == (
        "q",
        [("g", None, None)],
    )
    wide.sample()
    wide.pause_group("q", "g")
    [group] = wide.run(GetOutline())[0].groups
    assert (group.lag, group.paused, group.dead_letters) == (36, True, 0)


def test_totals_add_up_all_queues_by_minute(client: Client, sql: Connection) -> None:
    client.create("a")
    client.create("b")
    now = datetime.now(UTC).replace(second=0, microsecond=0)
    for queue, value in (("a", 3), ("b", 4)):
        sql.execute(
            "INSERT INTO penstock.queue_metrics (queue_name, metric_name, metric_value, timestamp)"
            " VALUES (%s, 'pushed', %s, %s)",
            (queue, value, now - timedelta(seconds=90)),
        )
    found = client.run(ListTotals(now - timedelta(hours=1), now))
    assert [(each.metric, each.total, each.bucket) for each in found] == [("pushed", 7, now - timedelta(minutes=2))]


def test_bad_arguments_are_refused(wide: Client) -> None:
    with pytest.raises(InvalidInput, match="sort_by is lag"):
        wide.run(SearchPartitions("q", sort="lag"))
    with pytest.raises(InvalidInput, match="max_rows"):
        wide.run(SearchPartitions("q", limit=100_000))
    with pytest.raises(InvalidInput, match="cells"):
        wide.run(MapLag("q", "g", cells=0))
    with pytest.raises(NotFound):
        wide.run(MapLag("q", "nobody"))
    with pytest.raises(InvalidInput, match="a day before"):
        wide.run(ListTotals(datetime.now(UTC) - timedelta(days=3), datetime.now(UTC)))


def test_a_search_visits_no_more_than_its_bound_by_the_index(client: Client, sql: Connection) -> None:
    client.create("q")
    client.create_group("q", "g")
    for _ in range(6):
        client.run(SearchPartitions("q", "g", sort="lag", max_look=100))
    sql.execute(
        "INSERT INTO penstock.partitions (queue_id, name)"
        " SELECT q.queue_id, 'p' || n FROM penstock.queues q, generate_series(1, 5000) n"
    )

    def visited() -> tuple[int, int]:
        sql.execute("SELECT pg_stat_force_next_flush()") if sql.info.server_version >= 150000 else None
        with client.transaction() as tx:
            if sql.info.server_version >= 150000:
                tx.connection.execute("SELECT pg_stat_force_next_flush()")
        [row] = sql.execute(
            "SELECT sum(seq_scan)::integer, sum(seq_tup_read + coalesce(idx_tup_fetch, 0))::integer"
            " FROM pg_stat_user_tables WHERE schemaname = 'penstock' AND relname IN ('segments', 'partitions')"
        ).fetchall()
        return row[0], row[1]

    # Three times: what sessions that have ended did before is counted when they get to it.
    visits = []
    for _ in range(3):
        before = visited()
        for sort in ("lag", "name", "newest"):
            client.run(SearchPartitions("q", "g", search="9", sort=sort, max_look=100))
        after = visited()
        assert after[0] == before[0]
        visits.append(after[1] - before[1])
    assert min(visits) <= 450
