"""What monitoring asks, through every client: series for charts, recent counts, the server, and differences."""

import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from databases import Connection
from penstock import InvalidInput, NotFound

HOUR = timedelta(hours=1)


def test_a_series_has_one_point_for_each_step(api: Any, sql: Connection) -> None:
    api.create("orders")
    noon = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(hours=12)
    sql.cursor().executemany(
        "INSERT INTO penstock.queue_metrics VALUES ('orders', %s, %s, %s, %s)",
        [("lag", 10 * n, noon + n * timedelta(minutes=1), '{"group": "a"}') for n in range(60)]
        + [("lag", 1, noon + n * timedelta(minutes=1), '{"group": "b"}') for n in range(60)]
        + [("pushed", 2, noon + n * timedelta(minutes=1), None) for n in range(60)],
    )
    points = api.series("orders", "lag", group="a", begin=noon, end=noon + HOUR, max_points=12)
    assert [(point.step, point.samples, point.newest) for point in points] == [(300, 5, 50 * n + 40) for n in range(12)]
    assert [(point.smallest, point.largest) for point in points[:2]] == [(0, 40), (50, 90)]
    both = api.series("orders", "lag", begin=noon, end=noon + HOUR, max_points=12)
    assert [point.newest for point in both] == [50 * n + 41 for n in range(12)]
    pushed = api.series("orders", "pushed", begin=noon, end=noon + HOUR, max_points=1)
    assert [(point.bucket, point.step, point.total) for point in pushed] == [(noon, 3600, 120)]
    assert api.series("orders", "no_such_metric", begin=noon, end=noon + HOUR) == []


def test_a_series_goes_on_in_rollups_where_values_are_no_longer_kept(api: Any, sql: Connection) -> None:
    api.create("orders")
    now = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    for days, total in ((20, 7), (10, 5)):
        sql.execute(
            "INSERT INTO penstock.queue_rollups"
            " VALUES ('orders', 'hour', %s, 'acked', '{\"group\": \"a\"}', 3, %s, 1, 4, 4)",
            (now - timedelta(days=days), total),
        )
    sql.execute("INSERT INTO penstock.queue_metrics VALUES ('orders', 'acked', 9, %s, '{\"group\": \"a\"}')", (now,))
    points = api.series("orders", "acked", begin=now - timedelta(days=25), end=now + HOUR, max_points=110)
    assert ([point.total for point in points], points[0].step) == ([7, 5, 9], 21600)


@pytest.mark.parametrize(("options", "error"), [({"max_points": 1001}, InvalidInput), ({"end": "begin"}, InvalidInput)])
def test_a_series_of_too_many_points_or_of_no_time_is_refused(api: Any, options: Any, error: type[Exception]) -> None:
    api.create("orders")
    now = datetime.now(UTC)
    given = {"begin": now - HOUR, "end": now, **options}
    with pytest.raises(error):
        api.series("orders", "lag", **{**given, "end": given["begin"] if given["end"] == "begin" else given["end"]})


def test_a_series_of_no_queue_is_not_found(api: Any) -> None:
    now = datetime.now(UTC)
    with pytest.raises(NotFound):
        api.series("no such queue", "lag", begin=now - HOUR, end=now)


def test_recent_counts_are_added_up_by_queue_and_group(api: Any, sql: Connection) -> None:
    api.create("orders")
    for value, ago in ((5, 10), (7, 100), (100, 1000)):
        sql.execute(
            "INSERT INTO penstock.queue_metrics VALUES ('orders', 'pushed', %s, clock_timestamp() - %s, NULL)",
            (value, timedelta(seconds=ago)),
        )
    sql.execute(
        "INSERT INTO penstock.queue_metrics VALUES ('orders', 'failed', 3, clock_timestamp(), '{\"group\": \"a\"}')"
    )
    found = {(count.queue, count.group, count.metric): count.total for count in api.rates()}
    assert found == {("orders", None, "pushed"): 12, ("orders", "a", "failed"): 3}
    assert {count.total for count in api.rates(period=20)} == {5, 3}
    with pytest.raises(InvalidInput):
        api.rates(period=0)


def test_the_server_tells_of_sizes_transactions_and_locks(api: Any, sql: Connection, connections: Any) -> None:
    api.push("large", [b"x" * 10_000] * 100, partition="p")
    api.push("small", b"x", partition="p")
    holder, waiter = connections.open(), connections.open()
    holder.execute("LOCK TABLE penstock.check_settings")
    waiting = threading.Thread(target=waiter.execute, args=["SELECT count(*) FROM penstock.check_settings"])
    waiting.start()
    while not (found := api.server()).waiting_for_locks:
        pass
    holder.rollback()
    waiting.join()
    assert found.lock_waits[0].blocked_by == [holder.info.backend_pid]
    assert found.lock_waits[0].table == "penstock.check_settings"
    assert [size.queue for size in found.queues] == ["large", "small"]
    assert found.queues[0].bytes > 100 * found.queues[1].bytes
    assert (found.estimated, found.standby) == (False, False)
    assert {"segments", "journal"} <= {table.name for table in found.tables}
    assert sum(found.connections.values()) >= 3
    assert found.schema_version >= 2


def test_differences_are_looked_for_once_they_are_old(api: Any, sql: Connection) -> None:
    api.push("orders", b"1", partition="p")
    sql.execute("TRUNCATE penstock.verifications")
    assert api.differences() == []
    first = api.differences(max_age=60)
    assert {difference.violations for difference in first} == {0}
    assert len(first) == len(api.verify())
    sql.execute("UPDATE penstock.segments SET base_offset = 5")
    assert api.differences(max_age=60) == first
    again = api.differences(max_age=0)
    assert any(difference.violations for difference in again)
    assert api.differences() == again
