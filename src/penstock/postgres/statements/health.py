"""The statements of health."""

from typing import Any

import msgspec

from penstock.broker.arguments import storable
from penstock.broker.health import BreakerInfo, ConsumerInfo, GroupVerdict
from penstock.broker.operations.health import ListBreakers, ListConsumers, ReportHealth, ResetBreaker, ResetConsumer
from penstock.postgres.statements.call import Call, json_text, scalar, statement


@statement(ReportHealth)
def report_health(wanted: ReportHealth) -> Call[list[GroupVerdict]]:
    health, groups = wanted.health, wanted.groups
    return Call(
        "SELECT queue_name, group_name, state, held_for, max_errors, max_rate, window_seconds, pause, pause_max, reset"
        " FROM penstock.report_health(%s::text, %s::bigint, %s::text, %s::bigint, %s::bigint, %s::bigint, %s::bigint,"
        " %s::bigint, %s::text, %s::text, %s::jsonb, %s::text[], %s::text[], %s::bigint[], %s::bigint[], %s::bigint[],"
        " %s::text[])",
        (
            wanted.consumer,
            wanted.number,
            health.status,
            health.success_count,
            health.error_count,
            health.consecutive_errors,
            health.avg_processing_time,
            health.p99_processing_time,
            _said(health.last_error),
            wanted.description,
            None if wanted.metadata is None else json_text(wanted.metadata),
            [each.queue for each in groups],
            [each.group for each in groups],
            [each.succeeded for each in groups],
            [each.failed for each in groups],
            [each.trailing for each in groups],
            [_said(each.last_error) for each in groups],
        ),
        lambda rows: [GroupVerdict(*row) for row in rows],
    )


@statement(ListConsumers)
def list_consumers(wanted: ListConsumers) -> Call[list[ConsumerInfo]]:
    return Call(
        "SELECT consumer_id, created_at, description, metadata::text, last_seen, status, success_count, error_count,"
        " consecutive_errors, avg_processing_time, p99_processing_time, last_error FROM penstock.list_consumers()",
        (),
        lambda rows: [_consumer(list(row)) for row in rows],
    )


@statement(ResetConsumer)
def reset_consumer(wanted: ResetConsumer) -> Call[bool]:
    return Call("SELECT penstock.reset_consumer(%s::text)", (wanted.consumer,), scalar)


@statement(ListBreakers)
def list_breakers(wanted: ListBreakers) -> Call[list[BreakerInfo]]:
    return Call("SELECT * FROM penstock.list_breakers()", (), lambda rows: [BreakerInfo(*row) for row in rows])


@statement(ResetBreaker)
def reset_breaker(wanted: ResetBreaker) -> Call[bool]:
    return Call("SELECT penstock.reset_breaker(%s::text, %s::text)", (wanted.queue, wanted.group), scalar)


def _consumer(columns: list[Any]) -> ConsumerInfo:
    columns[3] = None if columns[3] is None else msgspec.json.decode(columns[3])
    return ConsumerInfo(*columns)


def _said(error: str | None) -> str | None:
    return None if error is None else storable(error)
