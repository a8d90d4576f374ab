"""The statements of workers."""

from penstock.broker.operations.workers import GetRunStop, ListTasks, RegisterActions, ReportTasks, StopRun
from penstock.broker.tasks import TaskInfo
from penstock.postgres.statements.call import Call, json_text, nothing, scalar, statement


@statement(RegisterActions)
def register_actions(wanted: RegisterActions) -> Call[None]:
    return Call(
        "SELECT penstock.register_actions(%s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[], "
        "%s::text[])",
        tuple([action[column] for action in wanted.actions] for column in range(7)),
        nothing,
    )


@statement(ReportTasks)
def report_tasks(wanted: ReportTasks) -> Call[None]:
    tasks = [task._asdict() for task in wanted.tasks]
    return Call("SELECT penstock.report_tasks(%s::text, %s::jsonb)", (wanted.worker, json_text(tasks)), nothing)


@statement(ListTasks)
def list_tasks(wanted: ListTasks) -> Call[list[TaskInfo]]:
    return Call(
        "SELECT worker, flow, flow_type, action, action_class, did, message_id, attempt, started_at, running_for, "
        "progress, progress_text, heartbeat_at FROM penstock.list_tasks(%s::text)",
        (wanted.flow,),
        lambda rows: [TaskInfo(*row) for row in rows],
    )


@statement(StopRun)
def stop_run(wanted: StopRun) -> Call[None]:
    return Call("SELECT penstock.stop_run(%s::text, %s::boolean)", (wanted.run, wanted.at_once), nothing)


@statement(GetRunStop)
def get_run_stop(wanted: GetRunStop) -> Call[bool | None]:
    return Call("SELECT penstock.run_stop(%s::text)", (wanted.run,), scalar)
