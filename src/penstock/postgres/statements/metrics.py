"""The statements of metrics."""

from datetime import UTC, datetime

import msgspec

from penstock.broker.metrics import (
    CheckSettings,
    Facts,
    Metric,
    Point,
    RecentCount,
    Rollup,
    SampleStep,
    WorkInfo,
)
from penstock.broker.operations.metrics import (
    ConfigureCheck,
    GetDifferences,
    GetFacts,
    GetServer,
    ListChecks,
    ListMeasuredQueues,
    ListMetrics,
    ListRates,
    ListRollups,
    ListSeries,
    ListWork,
    RecordMetrics,
    Sample,
    StoreRollups,
)
from penstock.broker.server import Difference, ServerInfo
from penstock.postgres.statements.call import Call, Row, json_text, nothing, scalar, statement

_EARLIEST = datetime(1, 1, 1, tzinfo=UTC)


@statement(RecordMetrics)
def record_metrics(wanted: RecordMetrics) -> Call[int]:
    values = wanted.values
    return Call(
        "SELECT penstock.record_metrics(%s::text[], %s::text[], %s::bigint[], %s::jsonb[])",
        (
            [value.queue for value in values],
            [value.metric for value in values],
            [value.value for value in values],
            [None if value.group is None else json_text({"group": value.group}) for value in values],
        ),
        scalar,
    )


@statement(ListMetrics)
def list_metrics(wanted: ListMetrics) -> Call[list[Metric]]:
    return Call(
        'SELECT metric_name, metric_value, "timestamp", labels::text'
        " FROM penstock.list_metrics(%s::text, %s::text, %s::timestamptz, %s::integer)",
        (wanted.queue, wanted.metric, wanted.since or _EARLIEST, wanted.limit),
        lambda rows: [Metric(row[0], row[1], row[2], _labels(row[3])) for row in rows],
    )


@statement(Sample)
def sample(wanted: Sample) -> Call[SampleStep | None]:
    return Call(
        "SELECT visited, complete FROM penstock.sample(%s::integer, %s::float8)",
        (wanted.max_entries, wanted.min_age),
        lambda rows: SampleStep(*rows[0]) if rows else None,
    )


@statement(ListWork)
def list_work(wanted: ListWork) -> Call[list[WorkInfo]]:
    return Call(
        "SELECT queue, consumer_group, flow, flow_type, action, action_class, lag, cold, ready, claimed, waiting,"
        " oldest_at, oldest_age, oldest_id::text, oldest_did, sampled_at, times, lags, depths"
        " FROM penstock.list_work(%s::text)",
        (wanted.queue,),
        lambda rows: [WorkInfo(*row) for row in rows],
    )


@statement(GetFacts)
def get_facts(wanted: GetFacts) -> Call[Facts]:
    return Call("SELECT penstock.health_facts()::text", (), lambda rows: msgspec.json.decode(rows[0][0], type=Facts))


@statement(ListChecks)
def list_checks(wanted: ListChecks) -> Call[list[CheckSettings]]:
    return Call("SELECT * FROM penstock.list_checks()", (), lambda rows: [CheckSettings(*row) for row in rows])


@statement(ConfigureCheck)
def configure_check(wanted: ConfigureCheck) -> Call[None]:
    return Call(
        "SELECT penstock.configure_check(%s::text, %s::jsonb)", (wanted.name, json_text(wanted.changes)), nothing
    )


@statement(ListMeasuredQueues)
def list_measured_queues(wanted: ListMeasuredQueues) -> Call[list[str]]:
    return Call(
        "SELECT queue FROM penstock.measured_queues(%s::timestamptz)",
        (wanted.since,),
        lambda rows: [row[0] for row in rows],
    )


@statement(StoreRollups)
def store_rollups(wanted: StoreRollups) -> Call[int]:
    rollups = wanted.rollups
    return Call(
        "SELECT penstock.store_rollups(%s::text[], %s::text[], %s::timestamptz[], %s::text[], %s::jsonb[],"
        " %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[])",
        (
            [each.queue for each in rollups],
            [each.resolution for each in rollups],
            [each.bucket for each in rollups],
            [each.metric_name for each in rollups],
            [json_text(each.labels) for each in rollups],
            [each.samples for each in rollups],
            [each.total for each in rollups],
            [each.smallest for each in rollups],
            [each.largest for each in rollups],
            [each.newest for each in rollups],
        ),
        scalar,
    )


@statement(ListRollups)
def list_rollups(wanted: ListRollups) -> Call[list[Rollup]]:
    def read(row: Row) -> Rollup:
        columns = list(row)
        columns[4] = _labels(row[4]) or {}
        return Rollup(*columns)

    return Call(
        "SELECT queue, resolution, bucket, metric_name, labels::text, samples, total, smallest, largest, newest"
        " FROM penstock.list_rollups(%s::text, %s::text, %s::text, %s::integer)",
        (wanted.queue, wanted.resolution, wanted.metric, wanted.limit),
        lambda rows: [read(row) for row in rows],
    )


@statement(ListSeries)
def list_series(wanted: ListSeries) -> Call[list[Point]]:
    return Call(
        "SELECT * FROM penstock.list_series(%s::text, %s::text, %s::text, %s::timestamptz, %s::timestamptz,"
        " %s::integer)",
        (wanted.queue, wanted.metric, wanted.group, wanted.begin_at, wanted.end_at, wanted.max_points),
        lambda rows: [Point(*row) for row in rows],
    )


@statement(ListRates)
def list_rates(wanted: ListRates) -> Call[list[RecentCount]]:
    return Call(
        "SELECT * FROM penstock.list_rates(%s::float8)",
        (wanted.period,),
        lambda rows: [RecentCount(*row) for row in rows],
    )


@statement(GetServer)
def get_server(wanted: GetServer) -> Call[ServerInfo]:
    return Call(
        "SELECT penstock.server_facts()::text", (), lambda rows: msgspec.json.decode(rows[0][0], type=ServerInfo)
    )


@statement(GetDifferences)
def get_differences(wanted: GetDifferences) -> Call[list[Difference]]:
    return Call(
        "SELECT * FROM penstock.differences(%s::float8)",
        (wanted.max_age,),
        lambda rows: [Difference(*row) for row in rows],
    )


def _labels(text: str | None) -> dict[str, str] | None:
    return None if text is None else msgspec.json.decode(text)
