"""The statements that stage first and publish later.

The commit that publishes waits for the log on disk, and for all before it; so the statements that stage say for their
own transaction that its commit need not wait.
"""

from collections.abc import Sequence

from penstock.broker.operations.staging import (
    AbortStages,
    BeginStage,
    FlushStages,
    GetLimits,
    ListStages,
    PublishStages,
    StageSegments,
)
from penstock.broker.staging import Published, QueueLimits, StageInfo
from penstock.postgres.statements.call import Call, nothing, scalar, statement


@statement(ListStages)
def list_stages(wanted: ListStages) -> Call[list[StageInfo]]:
    return Call("SELECT * FROM penstock.list_stages()", (), lambda rows: [StageInfo(*row) for row in rows])


@statement(GetLimits)
def get_limits(wanted: GetLimits) -> Call[dict[str, QueueLimits]]:
    return Call(
        "SELECT * FROM penstock.queue_limits(%s::text[])",
        (list(wanted.queues),),
        lambda rows: {name: QueueLimits(*rest) for name, *rest in rows},
    )


@statement(BeginStage)
def begin_stage(wanted: BeginStage) -> Call[int]:
    return Call(
        "SELECT penstock.begin_stage(%s::text, %s::text, %s::bigint) "
        "FROM set_config('synchronous_commit', 'off', true)",
        (wanted.writer, wanted.run, wanted.epoch),
        scalar,
    )


@statement(StageSegments)
def stage_segments(wanted: StageSegments) -> Call[None]:
    part = wanted.part
    return Call(
        "SELECT penstock.stage_segments(%s::bigint, %s::bigint, %s::text[], %s::text[], %s::integer[], %b::bytea, "
        "%b::bytea, %b::bytea, %b::bytea, %b::bytea, %b::bytea) "
        "FROM set_config('synchronous_commit', 'off', true)",
        (
            wanted.stage_id,
            wanted.first,
            _texts(part.queues),
            _texts(part.partitions),
            _numbers(part.counts),
            part.body,
            part.ends,
            part.keys,
            part.key_ends,
            part.headers,
            part.header_ends,
        ),
        nothing,
    )


@statement(FlushStages)
def flush_stages(wanted: FlushStages) -> Call[None]:
    return Call("SELECT pg_catalog.pg_logical_emit_message(true, 'penstock', 'staged')::text", (), nothing)


@statement(PublishStages)
def publish_stages(wanted: PublishStages) -> Call[Published]:
    return Call(
        "SELECT * FROM penstock.publish_stages(%s::text, %s::text, %s::bigint, %s::bigint[], %s::bigint[], %s::text, "
        "%s::text)",
        (
            wanted.writer,
            wanted.run,
            wanted.epoch,
            [stage_id for stage_id, _ in wanted.stages],
            [messages for _, messages in wanted.stages],
            *wanted.target,
        ),
        lambda rows: Published(*rows[0]),
    )


@statement(AbortStages)
def abort_stages(wanted: AbortStages) -> Call[int]:
    return Call(
        "SELECT penstock.abort_stages(%s::text, %s::text, %s::bigint[])",
        (wanted.writer, wanted.run, list(wanted.stages)),
        scalar,
    )


# Arrays as PostgreSQL reads them: the driver writes lists item by item, at a microsecond for each.


def _texts(texts: Sequence[str]) -> str:
    # A text of PostgreSQL's holds no NUL.
    quoted = "\0".join(texts).replace("\\", "\\\\").replace('"', '\\"').replace("\0", '","')
    return f'{{"{quoted}"}}'


def _numbers(numbers: Sequence[int]) -> str:
    return f"{{{','.join(map(str, numbers))}}}"
