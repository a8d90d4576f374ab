"""Every route of the gateway, with the scope that a caller needs: nothing is answered that is not here.

A route that is not GET or HEAD can never have the scope `read`. Those that are used most come first: they are looked
for in this order.
"""

from penstock import ui
from penstock.broker.archives import ArchiveInfo
from penstock.broker.audit import ActInfo
from penstock.broker.browsing import FoundPartitions, LagCell, OutlinedQueue
from penstock.broker.flows import ActionInfo, FlowInfo
from penstock.broker.health import BreakerInfo, ConsumerInfo
from penstock.broker.infos import DeadReason, GroupInfo, MessageState, PartitionInfo, QueueInfo, Transition
from penstock.broker.jobs import JobInfo
from penstock.broker.keys import KeyInfo
from penstock.broker.metrics import CheckSettings, WorkInfo
from penstock.broker.rules import RuleInfo, RuleMatch
from penstock.broker.tasks import TaskInfo
from penstock.broker.warm import WarmGroup
from penstock.gateway.monitoring import history
from penstock.gateway.monitoring.figures import Figures
from penstock.gateway.monitoring.queues import DetailedQueues, RunningTasks
from penstock.gateway.monitoring.server import ServerPanel, ServerQuery
from penstock.gateway.pages import AfterName, Page
from penstock.gateway.route import API, BYTES, JSON, NDJSON, Route
from penstock.gateway.routes import (
    browsing,
    claiming,
    consumers,
    dead_letters,
    figures,
    flows,
    groups,
    health,
    hints,
    jobs,
    keys,
    messages,
    monitoring,
    operations,
    page,
    queues,
    schedules,
    service,
    session,
)
from penstock.gateway.scopes import Scope
from penstock.http import encoding
from penstock.operations.envelopes import Envelope

_PUSH, _POP, _READ, _ADMIN, _NONE = Scope.PUSH, Scope.POP, Scope.READ, Scope.ADMIN, Scope.NONE
_QUEUE = f"{API}/queues/{{queue}}"
_PARTITION = f"{_QUEUE}/partitions/{{partition}}"
_GROUP = f"{_QUEUE}/groups/{{group}}"
_LETTERS = f"{_QUEUE}/dead-letters"
_FLOW = f"{API}/flows/{{flow}}"
_SCHEDULE = f"{API}/schedules/{{name}}"
_RULE = f"{API}/rules/{{rule}}"
_MESSAGE = f"{API}/messages/{{message_id}}"

# fmt: off
TABLE: tuple[Route, ...] = (
    # Messages
    Route("POST", f"{_QUEUE}/messages", messages.push, _PUSH, "Push messages",
          messages.Options, messages.PushMessages, (JSON, NDJSON, BYTES), {201: messages.Pushed}),
    Route("POST", f"{_GROUP}/pop", claiming.pop, _POP, "Claim the next messages of a group",
          claiming.PopOptions, replies={200: claiming.Popped, 204: None}),
    Route("POST", f"{API}/pops", claiming.pop_many, _POP, "Claim the next messages of several groups",
          None, claiming.PopMany, replies={200: claiming.PoppedMany, 204: None}, in_body=True),
    Route("POST", f"{API}/acks", claiming.ack, _POP, "Acknowledge messages",
          None, claiming.Acks, replies={200: claiming.Settled}, in_body=True),
    *operations.routes(),
    Route("POST", f"{API}/operations/{encoding.TOGETHER}", operations.together, _PUSH, "Acknowledge and push together",
          None, bytes, (encoding.MEDIA,), reply_media=encoding.MEDIA, described=False, in_body=True),
    Route("GET", f"{API}/hints", hints.hints, _POP, "Hear of pushes as they come",
          reply_media=NDJSON, streams=True, in_body=True),
    Route("POST", f"{API}/nacks", claiming.nack, _POP, "Say that a claim failed",
          None, claiming.Nacks, replies={200: claiming.Failed}, in_body=True),
    Route("POST", f"{API}/snoozes", claiming.snooze, _POP, "Let a claim come back in a while",
          None, claiming.Snooze, replies={200: claiming.Settled}, in_body=True),
    Route("POST", f"{API}/renewals", claiming.renew, _POP, "Extend leases",
          None, claiming.Renewals, replies={200: claiming.Renewed}, in_body=True),
    Route("POST", f"{API}/releases", claiming.release, _POP, "Give claims back",
          None, claiming.Leases, replies={200: claiming.Settled}, in_body=True),
    Route("POST", f"{API}/transactions", claiming.together, _POP, "Acknowledge and push together",
          None, claiming.Together, replies={200: claiming.DoneTogether}, in_body=True),
    Route("GET", f"{_PARTITION}/messages", messages.read, _READ, "Read messages of a partition",
          messages.ReadRange, replies={200: Page[Envelope]}),
    Route("POST", f"{API}/messages/cancel", messages.cancel, _ADMIN, "Cancel messages",
          None, messages.CancelMessages, replies={200: messages.CancelledMessages}, shows=True),
    Route("GET", _MESSAGE, messages.get, _READ, "Get a message by its id", replies={200: Envelope}, shows=True),
    Route("GET", f"{_MESSAGE}/state", messages.state, _READ, "Get the state of a message in each group",
          replies={200: list[MessageState]}, shows=True),
    Route("GET", f"{_MESSAGE}/result", messages.result, _READ, "Get the result of a message",
          messages.ResultQuery, replies={200: messages.Result, 204: None}, shows=True),
    Route("GET", f"{API}/scheduled", messages.list_scheduled, _READ, "List scheduled pushes",
          messages.ScheduledQuery, replies={200: Page[messages.ScheduledPush]}, shows=True),
    Route("DELETE", f"{API}/scheduled/{{scheduled_id}}", messages.cancel_scheduled, _PUSH, "Cancel a scheduled push",
          replies={200: messages.CancelledScheduled}),
    # Queues and partitions
    Route("GET", f"{API}/queues", queues.list_queues, _READ, "List queues", AfterName,
          replies={200: Page[QueueInfo]}, shows=True),
    Route("GET", _QUEUE, queues.get_queue, _READ, "Describe a queue", replies={200: QueueInfo}),
    Route("PUT", _QUEUE, queues.put_queue, _ADMIN, "Create a queue, or replace its settings",
          None, queues.QueueConfig, replies={200: QueueInfo, 201: QueueInfo}),
    Route("PATCH", _QUEUE, queues.patch_queue, _ADMIN, "Change settings of a queue",
          None, queues.QueueConfig, replies={200: QueueInfo}),
    Route("DELETE", _QUEUE, queues.delete_queue, _ADMIN, "Delete a queue", replies={200: queues.Dropped}),
    Route("POST", f"{_QUEUE}/purge", queues.purge_queue, _ADMIN, "Drop the messages of a queue",
          replies={200: queues.Dropped}),
    Route("POST", f"{_QUEUE}/pause", queues.pause_queue, _ADMIN, "Refuse pushes to a queue",
          replies={200: queues.Changed}),
    Route("POST", f"{_QUEUE}/resume", queues.resume_queue, _ADMIN, "Take pushes to a queue again",
          replies={200: queues.Changed}),
    Route("GET", f"{_QUEUE}/partitions", queues.list_partitions, _READ, "List partitions", AfterName,
          replies={200: Page[PartitionInfo]}),
    Route("GET", _PARTITION, queues.get_partition, _READ, "Describe a partition", replies={200: PartitionInfo}),
    Route("PUT", _PARTITION, queues.put_partition, _ADMIN, "Create a partition, or replace its settings",
          None, queues.PartitionConfig, replies={200: PartitionInfo, 201: PartitionInfo}),
    Route("DELETE", _PARTITION, queues.delete_partition, _ADMIN, "Delete a partition",
          replies={200: queues.Dropped}),
    Route("POST", f"{_PARTITION}/purge", queues.purge_partition, _ADMIN, "Drop the messages of a partition",
          replies={200: queues.Dropped}),
    # Groups
    Route("GET", f"{API}/groups", groups.list_all_groups, _READ, "List the groups of all queues", AfterName,
          replies={200: Page[GroupInfo]}, shows=True),
    Route("GET", f"{_QUEUE}/groups", groups.list_groups, _READ, "List the groups of a queue", AfterName,
          replies={200: Page[GroupInfo]}),
    Route("GET", _GROUP, groups.get_group, _READ, "Describe a group", replies={200: GroupInfo}),
    Route("PUT", _GROUP, groups.put_group, _ADMIN, "Create a group, or replace its settings",
          None, groups.GroupConfig, replies={200: GroupInfo, 201: GroupInfo}),
    Route("PATCH", _GROUP, groups.patch_group, _ADMIN, "Change settings of a group",
          None, groups.GroupChanges, replies={200: GroupInfo}),
    Route("DELETE", _GROUP, groups.delete_group, _ADMIN, "Delete a group", replies={204: None}),
    Route("POST", f"{_GROUP}/pause", groups.pause_group, _ADMIN, "Deliver nothing to a group",
          replies={200: queues.Changed}),
    Route("POST", f"{_GROUP}/resume", groups.resume_group, _ADMIN, "Deliver to a group again",
          replies={200: queues.Changed}),
    Route("GET", f"{_GROUP}/lag", groups.lag, _READ, "Get the lag of a group", replies={200: groups.Lag}),
    Route("POST", f"{_GROUP}/seek", groups.seek, _ADMIN, "Move a group, or say what that would do",
          None, groups.SeekTo, replies={200: groups.Sought}),
    Route("GET", f"{_GROUP}/partitions/{{partition}}/history", groups.history, _READ,
          "Tell what happened to a partition in a group", groups.HistoryQuery, replies={200: list[Transition]}),
    Route("GET", f"{API}/claims", groups.list_claims, _ADMIN, "List claims", groups.ClaimsQuery,
          replies={200: list[groups.HeldClaim]}, shows=True),
    Route("DELETE", f"{API}/claims/{{lease}}", groups.release_claim, _ADMIN, "Take a claim away",
          replies={200: queues.Changed}),
    Route("GET", f"{API}/windows", groups.list_windows, _READ, "List windows in Valkey",
          replies={200: list[WarmGroup]}, shows=True),
    # Dead letters and rules
    Route("GET", _LETTERS, dead_letters.list_letters, _READ, "List dead letters", dead_letters.LettersQuery,
          replies={200: Page[dead_letters.ShownLetter]}),
    Route("GET", f"{_LETTERS}/reasons", dead_letters.count_letters, _READ, "Count dead letters by reason",
          dead_letters.GroupQuery, replies={200: list[DeadReason]}),
    Route("POST", f"{_LETTERS}/redrive", dead_letters.redrive, _ADMIN, "Deliver dead letters again",
          None, dead_letters.LetterIds, replies={200: dead_letters.Verdicts}),
    Route("POST", f"{_LETTERS}/discard", dead_letters.discard, _ADMIN, "Throw dead letters away",
          None, dead_letters.LetterIds, replies={200: dead_letters.Verdicts}),
    Route("POST", f"{API}/jobs", jobs.begin_job, _ADMIN, "Redrive or discard dead letters by a filter",
          None, jobs.LetterJob, replies={202: JobInfo}, in_body=True),
    Route("GET", f"{API}/jobs", jobs.list_jobs, _READ, "List jobs", jobs.JobsQuery,
          replies={200: list[JobInfo]}, shows=True),
    Route("GET", f"{API}/jobs/{{job}}", jobs.get_job, _READ, "Say how far a job is",
          replies={200: JobInfo}, shows=True),
    Route("DELETE", f"{API}/jobs/{{job}}", jobs.stop_job, _ADMIN, "Stop a job",
          replies={200: queues.Changed}, shows=True),
    Route("GET", f"{API}/rules", dead_letters.list_rules, _READ, "List rules for dead letters",
          replies={200: list[RuleInfo]}, shows=True),
    Route("PUT", _RULE, dead_letters.put_rule, _ADMIN, "Add a rule",
          None, dead_letters.RuleDefinition, replies={201: RuleInfo}),
    Route("GET", f"{_RULE}/test", dead_letters.test_rule, _READ, "Say what a rule would do",
          replies={200: list[RuleMatch]}),
    Route("DELETE", _RULE, dead_letters.delete_rule, _ADMIN, "Delete a rule", replies={204: None}),
    # Flows, actions, schedules
    Route("GET", f"{API}/flows", flows.list_flows, _READ, "List flows", replies={200: list[FlowInfo]}, shows=True),
    Route("GET", _FLOW, flows.get_flow, _READ, "Describe a flow", replies={200: FlowInfo}, shows=True),
    Route("POST", f"{_FLOW}/pause", flows.pause_flow, _ADMIN, "Pause a flow", replies={200: FlowInfo}),
    Route("POST", f"{_FLOW}/resume", flows.resume_flow, _ADMIN, "Let a flow go on", replies={200: FlowInfo}),
    Route("DELETE", _FLOW, flows.forget_flow, _ADMIN, "Forget a flow", replies={204: None}),
    Route("GET", f"{API}/actions", flows.list_actions, _READ, "List actions", flows.FlowQuery,
          replies={200: list[ActionInfo]}, shows=True),
    Route("GET", f"{API}/tasks", flows.list_tasks, _READ, "List running tasks", flows.FlowQuery,
          replies={200: list[TaskInfo]}, shows=True),
    Route("GET", f"{API}/archives", flows.list_archives, _READ, "List archives", flows.QueueQuery,
          replies={200: list[ArchiveInfo]}, shows=True),
    Route("GET", f"{API}/schedules", schedules.list_schedules, _READ, "List schedules",
          replies={200: list[schedules.ShownSchedule]}, shows=True),
    Route("GET", _SCHEDULE, schedules.get_schedule, _READ, "Describe a schedule",
          replies={200: schedules.ShownSchedule}, shows=True),
    Route("PUT", _SCHEDULE, schedules.put_schedule, _ADMIN, "Define a schedule",
          None, schedules.ScheduleDefinition, replies={200: schedules.ShownSchedule}),
    Route("POST", f"{_SCHEDULE}/pause", schedules.pause_schedule, _ADMIN, "Pause a schedule",
          replies={200: schedules.ShownSchedule}),
    Route("POST", f"{_SCHEDULE}/resume", schedules.resume_schedule, _ADMIN, "Let a schedule go on",
          replies={200: schedules.ShownSchedule}),
    Route("POST", f"{_SCHEDULE}/run", schedules.run_schedule, _ADMIN, "Push the message of a schedule now",
          replies={200: messages.PushedTo}),
    Route("DELETE", _SCHEDULE, schedules.delete_schedule, _ADMIN, "Delete a schedule", replies={204: None}),
    # Consumers and health
    Route("GET", f"{API}/consumers", consumers.list_consumers, _READ, "List consumers",
          replies={200: list[ConsumerInfo]}, shows=True),
    Route("POST", f"{API}/consumers/{{consumer}}/reset", consumers.reset_consumer, _ADMIN, "Reset a consumer",
          replies={200: queues.Changed}),
    Route("GET", f"{API}/breakers", consumers.list_breakers, _READ, "List circuit breakers",
          replies={200: list[BreakerInfo]}, shows=True),
    Route("POST", f"{_GROUP}/breaker/reset", consumers.reset_breaker, _ADMIN, "Close the breaker of a group",
          replies={200: queues.Changed}),
    Route("GET", f"{API}/status", health.status, _READ, "Say what is stuck, why, and what to do",
          replies={200: health.Status}, shows=True),
    Route("GET", f"{API}/checks", health.list_checks, _READ, "List checks",
          replies={200: list[CheckSettings]}, shows=True),
    Route("PATCH", f"{API}/checks/{{check}}", health.patch_check, _ADMIN, "Change a check",
          None, health.CheckChanges, replies={200: CheckSettings}),
    Route("GET", f"{API}/work", health.list_work, _READ, "List what waits for each group", flows.QueueQuery,
          replies={200: list[WorkInfo]}, shows=True),
    Route("GET", f"{API}/verify", health.verify, _ADMIN, "Compare state and log", replies={200: health.Verified}),
    # Monitoring
    Route("GET", "/metrics", monitoring.metrics, _READ, "Get metrics for Prometheus",
          replies={200: str}, reply_media="text/plain", shows=True),
    Route("GET", f"{API}/events", monitoring.events, _READ, "Follow live figures",
          replies={200: Figures}, reply_media=monitoring.EVENTS, streams=True, shows=True),
    Route("GET", f"{_QUEUE}/series/{{metric}}", monitoring.series, _READ, "Get a series for a chart",
          history.SeriesQuery, replies={200: history.Series}),
    Route("GET", f"{API}/server", monitoring.server, _READ, "Describe the server and its database",
          ServerQuery, replies={200: ServerPanel}),
    Route("GET", f"{API}/metrics/queues/detailed", monitoring.detailed, _READ,
          "List what waits for each action, warm and cold", replies={200: DetailedQueues}, shows=True),
    Route("GET", f"{API}/metrics/queues/action-plugins", monitoring.action_plugins, _READ,
          "Name the plugin of each action class", replies={200: dict[str, str]}, shows=True),
    Route("GET", f"{API}/metrics/queues/running", monitoring.running, _READ, "List the items whose handlers run",
          replies={200: RunningTasks}, shows=True),
    Route("GET", f"{API}/metrics/rates", figures.rates, _READ, "List what was counted lately",
          replies={200: figures.Rates}, shows=True),
    Route("GET", f"{API}/metrics/totals", figures.totals, _READ, "Get what was counted in all queues, for a chart",
          replies={200: figures.Totals}, shows=True),
    # Looking around, for people
    Route("GET", f"{API}/browse/outline", browsing.outline, _READ, "List queues and groups without counting",
          replies={200: list[OutlinedQueue]}, shows=True),
    Route("GET", f"{API}/browse/queues/{{queue}}/partitions", browsing.partitions, _READ, "Find partitions",
          browsing.PartitionQuery, replies={200: FoundPartitions}),
    Route("GET", f"{API}/browse/queues/{{queue}}/lag-map", browsing.lag_map, _READ, "Say where the lag of a group sits",
          browsing.MapQuery, replies={200: list[LagCell]}),
    Route("GET", f"{API}/browse/queues/{{queue}}/messages", browsing.messages, _READ, "Find messages",
          browsing.MessageQuery, replies={200: browsing.Browsed}),
    Route("GET", f"{API}/browse/messages/{{message_id}}/children", browsing.children, _READ,
          "Find what a message caused", replies={200: browsing.Browsed}, shows=True),
    # The page
    *(Route("GET", path, page.page, _NONE, "Show the page", described=False) for path in ui.PAGES),
    Route("GET", "/ui/{file}", page.file, _NONE, "Get a file of the page", described=False),
    Route("GET", "/ui/{folder}/{file}", page.file, _NONE, "Get a file of the page", described=False),
    Route("GET", "/ui/{version}/{folder}/{file}", page.file, _NONE, "Get a file of the page", described=False),
    # Who may call, and what they changed
    Route("POST", f"{API}/session", session.sign_in, _NONE, "Sign in with an API key, for a browser",
          None, session.SignIn, replies={200: session.SignedIn}),
    Route("GET", f"{API}/session", session.who, _NONE, "Say who calls, and what it may do",
          replies={200: session.SignedIn}),
    Route("DELETE", f"{API}/session", session.sign_out, _NONE, "Sign out", replies={204: None}),
    Route("GET", f"{API}/keys", keys.list_keys, _ADMIN, "List API keys", keys.KeysQuery,
          replies={200: list[KeyInfo]}),
    Route("POST", f"{API}/keys", keys.create_key, _ADMIN, "Create an API key",
          None, keys.KeyDefinition, replies={201: keys.ShownKey}, audits=True),
    Route("POST", f"{API}/keys/{{key}}/rotate", keys.rotate_key, _ADMIN, "Give an API key a new secret",
          None, keys.Rotation, replies={200: keys.ShownKey}, audits=True),
    Route("DELETE", f"{API}/keys/{{key}}", keys.revoke_key, _ADMIN, "Revoke an API key",
          replies={200: KeyInfo}, audits=True),
    Route("GET", f"{API}/audit", keys.list_acts, _ADMIN, "List administrative acts", keys.ActsQuery,
          replies={200: Page[ActInfo]}),
    # The gateway itself
    Route("GET", "/healthz", service.healthz, _NONE, "Say that the process is alive", replies={200: service.Health}),
    Route("GET", "/readyz", service.readyz, _NONE, "Say that the database is ready", replies={200: service.Health}),
    Route("GET", "/openapi.json", service.openapi, _NONE, "Get this description", replies={200: dict}),
    Route("GET", "/docs", service.docs, _NONE, "Read this description", described=False),
    Route("GET", "/docs/{file}", service.docs_file, _NONE, "Get a file of that page", described=False),
)
# fmt: on
