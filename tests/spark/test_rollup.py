"""The series of queues are rolled up to minutes, hours and days; what was rolled up stays when the values are gone."""

from datetime import UTC, datetime, timedelta

from penstock.pipeline.rolling_up import rollup

from .conftest import Lab

DAY = datetime(2026, 1, 31, tzinfo=UTC)


def measure(lab: Lab, queue: str, hours: float, value: int, group: str | None = None) -> None:
    with lab.client.transaction() as tx:
        labels = None if group is None else f'{{"group": "{group}"}}'
        tx.connection.execute(
            "INSERT INTO penstock.queue_metrics VALUES (%s, 'lag', %s, %s, %s::jsonb)",
            (queue, value, DAY + timedelta(hours=hours), labels),
        )


def test_values_are_summed_up_by_minute_hour_and_day_for_each_series(lab: Lab) -> None:
    for queue in ("a", "b", "without"):
        lab.client.create(queue)
    measure(lab, "a", -1, 1000)
    for hours, value in ((0.0, 5), (0.01, 7), (0.5, 1), (1.5, 20)):
        measure(lab, "a", hours, value, "g")
    measure(lab, "a", 0.5, 100, "other")
    measure(lab, "b", 3, 9)

    result = rollup(since=DAY + timedelta(hours=12), url=lab.dsn, spark=lab.spark)

    assert (result.since, result.queues) == (DAY, 2)
    assert _seen(lab, "a", "minute") == [(0, 2, 12, 5, 7, 7), (30, 1, 1, 1, 1, 1), (90, 1, 20, 20, 20, 20)]
    assert _seen(lab, "a", "hour") == [(0, 3, 13, 1, 7, 1), (60, 1, 20, 20, 20, 20)]
    assert _seen(lab, "a", "day") == [(0, 4, 33, 1, 20, 20)]
    assert _seen(lab, "a", "day", "other") == [(0, 1, 100, 100, 100, 100)]
    assert _seen(lab, "b", "day", None) == [(0, 1, 9, 9, 9, 9)]
    # Repeated, it finds the same, and stores nothing.
    assert rollup(since=DAY, url=lab.dsn, spark=lab.spark).stored == 0

    with lab.client.transaction() as tx:
        tx.connection.execute("DELETE FROM penstock.queue_metrics WHERE metric_value < 20")
    measure(lab, "b", 4, 11)
    assert rollup(since=DAY, url=lab.dsn, spark=lab.spark).stored > 0
    assert _seen(lab, "a", "day") == [(0, 4, 33, 1, 20, 20)]


def _seen(
    lab: Lab, queue: str, resolution: str, group: str | None = "g"
) -> list[tuple[float, int, int, int, int, int]]:
    """Return the rollups of a group, oldest first, each with its minute of the day."""
    return [
        ((each.bucket - DAY).total_seconds() / 60, each.samples, each.total, each.smallest, each.largest, each.newest)
        for each in reversed(lab.client.rollups(queue, "lag", resolution=resolution))
        if each.labels.get("group") == group
    ]
