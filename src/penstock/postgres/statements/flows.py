"""The statements of flows."""

from penstock.broker.flows import (
    ActionInfo,
    EpochRange,
    FlowHolder,
    FlowInfo,
    Letter,
    PoisonMessage,
    RegisteredFlow,
)
from penstock.broker.operations.flows import (
    AddPoison,
    FindPoison,
    ForgetFlow,
    GetEpochRanges,
    HeartbeatFlow,
    ListActions,
    ListFlows,
    ListPausedFlows,
    PauseFlow,
    PublishEpoch,
    RegisterFlow,
    ResetFlow,
    StageDeadLetters,
)
from penstock.broker.staging import Published
from penstock.postgres.statements.call import Call, nothing, scalar, statement


@statement(ListFlows)
def list_flows(wanted: ListFlows) -> Call[list[FlowInfo]]:
    return Call(
        "SELECT name, flow_type, state, since, paused, lag, warm, cold, oldest_since, rows_per_second, epoch, epoch_at,"
        " dead_letters, failures, error, retry_at, sources, outputs, checkpoint, supervisor, heartbeat_at, late_rows"
        " FROM penstock.list_flows()",
        (),
        lambda rows: [FlowInfo(*row) for row in rows],
    )


@statement(ListActions)
def list_actions(wanted: ListActions) -> Call[list[ActionInfo]]:
    return Call(
        "SELECT a.flow, a.flow_type, a.action, a.action_class, a.plugin, a.registered_at, coalesce(w.warm, f.warm),"
        " coalesce(w.cold, f.cold), w.queue, w.output"
        " FROM penstock.list_actions(%s::text) WITH ORDINALITY"
        " a (flow, flow_type, action, action_class, plugin, registered_at, number)"
        " JOIN penstock.list_flows() f ON f.name = a.flow"
        " LEFT JOIN penstock.list_action_work(%s::text) w ON w.flow = a.flow AND w.action = a.action"
        " ORDER BY a.number",
        (wanted.flow, wanted.flow),
        lambda rows: [ActionInfo(*row) for row in rows],
    )


@statement(RegisterFlow)
def register_flow(wanted: RegisterFlow) -> Call[RegisteredFlow]:
    return Call(
        "SELECT * FROM penstock.register_flow(%s::text, %s::text, %s::text[], %s::text[], %s::text, %s::text, "
        "%s::text[], %s::text[], %s::text[])",
        (
            wanted.flow,
            wanted.flow_type,
            list(wanted.sources),
            list(wanted.outputs),
            wanted.shape,
            wanted.checkpoint,
            *([action[column] for action in wanted.actions] for column in range(3)),
        ),
        lambda rows: RegisteredFlow(*rows[0]),
    )


@statement(ResetFlow)
def reset_flow(wanted: ResetFlow) -> Call[int]:
    return Call("SELECT penstock.reset_flow(%s::text, %s::text)", (wanted.flow, wanted.checkpoint), scalar)


@statement(HeartbeatFlow)
def heartbeat_flow(wanted: HeartbeatFlow) -> Call[FlowHolder]:
    return Call(
        "SELECT * FROM penstock.heartbeat_flow(%s::text, %s::text, %s::text, %s::integer, %s::text, %s::timestamptz, "
        "%s::bigint, %s::double precision, late_rows => %s::bigint, take_over => %s::boolean)",
        (wanted.flow, wanted.supervisor, *wanted.status, wanted.take_over),
        lambda rows: FlowHolder(*rows[0]),
    )


@statement(PauseFlow)
def pause_flow(wanted: PauseFlow) -> Call[None]:
    return Call("SELECT penstock.pause_flow(%s::text, %s::boolean)", (wanted.flow, wanted.paused), nothing)


@statement(ForgetFlow)
def forget_flow(wanted: ForgetFlow) -> Call[None]:
    return Call("SELECT penstock.forget_flow(%s::text)", (wanted.flow,), nothing)


@statement(ListPausedFlows)
def list_paused_flows(wanted: ListPausedFlows) -> Call[set[str]]:
    return Call("SELECT penstock.paused_flows()", (), lambda rows: set(rows[0][0]))


@statement(StageDeadLetters)
def stage_dead_letters(wanted: StageDeadLetters) -> Call[None]:
    columns = [[letter[column] for letter in wanted.letters] for column in range(len(Letter._fields))]
    return Call(
        "SELECT penstock.stage_dead_letters(%s::bigint, %s::text, %s::text[], %s::text[], %s::bigint[], %s::text[], "
        "%s::text[], %s::boolean, %b::bytea[], %s::text[], %s::text[], %s::timestamptz[], %s::text[])",
        (wanted.stage_id, wanted.group, *columns[:5], wanted.of_source, *columns[5:]),
        nothing,
    )


@statement(PublishEpoch)
def publish_epoch(wanted: PublishEpoch) -> Call[Published]:
    return Call(
        "SELECT * FROM penstock.publish_epoch(%s::text, %s::text, %s::text, %s::bigint, %s::bigint[], %s::bigint[], "
        "%s::text, %s::text)",
        (
            wanted.group,
            wanted.writer,
            wanted.run,
            wanted.epoch,
            [stage_id for stage_id, _ in wanted.stages],
            [messages for _, messages in wanted.stages],
            *wanted.target,
        ),
        lambda rows: Published(*rows[0][:3]),
    )


@statement(AddPoison)
def add_poison(wanted: AddPoison) -> Call[None]:
    return Call(
        "SELECT penstock.add_poison(%s::text, %s::bigint[], %s::bigint[], %s::text, %s::text[])",
        (
            wanted.flow,
            [partition_id for partition_id, _ in wanted.places],
            [offset for _, offset in wanted.places],
            wanted.reason,
            list(wanted.errors),
        ),
        nothing,
    )


@statement(FindPoison)
def find_poison(wanted: FindPoison) -> Call[list[PoisonMessage]]:
    return Call(
        "SELECT * FROM penstock.find_poison(%s::text, %s::bigint[], %s::bigint[], %s::bigint[])",
        (wanted.flow, list(wanted.ids), list(wanted.starts), list(wanted.stops)),
        lambda rows: [PoisonMessage(*row) for row in rows],
    )


@statement(GetEpochRanges)
def get_epoch_ranges(wanted: GetEpochRanges) -> Call[list[EpochRange]]:
    return Call(
        "SELECT * FROM penstock.epoch_ranges(%s::text, %s::text)",
        (wanted.writer, wanted.run),
        lambda rows: [EpochRange(*row) for row in rows],
    )
