"""The statements of browsing."""

from collections.abc import Sequence

import msgspec

from penstock.broker.browsing import FoundPartition, FoundPartitions, LagCell, OutlinedGroup, OutlinedQueue, TotalPoint
from penstock.broker.operations.browsing import GetOutline, ListTotals, MapLag, SearchPartitions
from penstock.postgres.statements.call import Call, Row, statement

_groups = msgspec.json.Decoder(list[OutlinedGroup])


@statement(GetOutline)
def get_outline(wanted: GetOutline) -> Call[list[OutlinedQueue]]:
    return Call(
        "SELECT name, description, created_at, config::text, settings::text, groups::text FROM penstock.outline()",
        (),
        lambda rows: [
            OutlinedQueue(
                name,
                description,
                created_at,
                msgspec.json.decode(config),
                msgspec.json.decode(holds),
                _groups.decode(groups),
            )
            for name, description, created_at, config, holds, groups in rows
        ],
    )


@statement(SearchPartitions)
def search_partitions(wanted: SearchPartitions) -> Call[FoundPartitions]:
    return Call(
        "SELECT * FROM penstock.search_partitions(%s::text, %s::text, %s::text, %s::text, %s::text, %s::integer, "
        "%s::integer, %s::integer)",
        (
            wanted.queue,
            wanted.group,
            wanted.search,
            wanted.sort,
            wanted.after,
            wanted.skip,
            wanted.limit,
            wanted.max_look,
        ),
        _found,
    )


@statement(MapLag)
def map_lag(wanted: MapLag) -> Call[list[LagCell]]:
    return Call(
        "SELECT cell, partitions, lag, worst, worst_lag FROM penstock.lag_map(%s::text, %s::text, %s::integer, "
        "%s::integer)",
        (wanted.queue, wanted.group, wanted.cells, wanted.max_look),
        lambda rows: [LagCell(*row) for row in rows],
    )


@statement(ListTotals)
def list_totals(wanted: ListTotals) -> Call[list[TotalPoint]]:
    return Call(
        "SELECT * FROM penstock.total_series(%s::timestamptz, %s::timestamptz, %s::float8, %s::text[])",
        (wanted.begin_at, wanted.end_at, wanted.step, None if wanted.queues is None else list(wanted.queues)),
        lambda rows: [TotalPoint(*row) for row in rows],
    )


def _found(rows: Sequence[Row]) -> FoundPartitions:
    looked, looked_to = rows[0][-2:] if rows else (0, None)
    return FoundPartitions([FoundPartition(*row[:-2]) for row in rows if row[0] is not None], looked, looked_to)
