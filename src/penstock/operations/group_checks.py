"""Checks of consumer groups and flows: work that nobody takes, timers that do not fire, dead letters."""

import time
from datetime import datetime, timedelta
from typing import Any, Literal, TypeVar

import psycopg

from penstock.broker.infos import FailingTimer, GroupInfo
from penstock.broker.operations.flows import ListFlows
from penstock.broker.operations.groups import ListClaims, ListFailingTimers, ListGroups
from penstock.broker.operations.operation import Operation
from penstock.broker.operations.pushing import ListScheduled
from penstock.broker.operations.staging import ListStages
from penstock.postgres import migrate
from penstock.postgres.statements.call import call_for

Finding = tuple[Literal["ok", "info", "warn", "fail"], str] | tuple[Literal["ok", "info", "warn", "fail"], str, str]
T = TypeVar("T")

_STUCK = timedelta(minutes=10)
# A busy consumer takes a claim within this time.
_SECOND_LOOK = 1.0
# Any consumer or maintenance process sweeps within this time.
_UNSWEPT = timedelta(seconds=10)
_ABANDONED = timedelta(hours=1)
# A sweep takes seconds and then commits.
_SWEEP_HELD = timedelta(seconds=60)
_FEW = 5
_DENIED: Finding = (
    "info",
    "permission denied (needs the consumer or admin role)",
    "run `penstock doctor` as a consumer or an admin",
)
_TIMERS = {
    "journal": "the timer",
    "claim": "a claim",
    "late_wakeup": "a late wake-up",
    "enrolment": "enrolment",
    "scheduled": "a scheduled push",
    "sweep": "the whole sweep",
    "maintenance": "maintenance",
}


def stuck_groups(connection: psycopg.Connection[Any], embedded: bool) -> Finding:
    """Check for groups whose ready work no consumer takes."""
    if (unseen := _unseen(connection)) is not None:
        return unseen
    suspects = _stuck(connection)
    if suspects:
        # A busy consumer holds no claim between two pops, but then the group has changed a moment later.
        time.sleep(_SECOND_LOOK)
        later = _stuck(connection)
        suspects = {name: info for name, info in later.items() if _same(info, suspects.get(name))}
    if not suspects:
        return "ok", "none"
    found = [f"{_name(info)} since {_when(info.oldest_since)}, lag {info.lag}" for info in suspects.values()]
    return "warn", _listed(found), "no consumer is running: start one, or delete the group with `penstock group delete`"


def expired_claims(connection: psycopg.Connection[Any], embedded: bool) -> Finding:
    """Check for claims whose lease expired long ago."""
    if (unseen := _unseen(connection)) is not None:
        return unseen
    now = _now(connection)
    left = [claim for claim in _ask(connection, ListClaims()) if claim.expires_at < now - _UNSWEPT]
    if not left:
        return "ok", "none"
    found = [f"{claim.partition} of group {claim.group} of queue {claim.queue}" for claim in left]
    return (
        "warn",
        f"{_listed(found)}, the first since {_when(left[0].expires_at)}",
        "no process fires timers: start a consumer, or run `penstock maintain` or `penstock up`",
    )


def overdue_messages(connection: psycopg.Connection[Any], embedded: bool) -> Finding:
    """Check for scheduled messages that should have been published long ago."""
    if (unseen := _unseen(connection)) is not None:
        return unseen
    first = _ask(connection, ListScheduled(limit=1))
    if not first or first[0].due_at >= _now(connection) - _UNSWEPT:
        return "ok", "none"
    return (
        "warn",
        f"scheduled for partition {first[0].partition} of queue {first[0].queue}, due since {_when(first[0].due_at)}",
        "no process fires timers: start a consumer, or run `penstock maintain` or `penstock up`",
    )


def failing_timers(connection: psycopg.Connection[Any], embedded: bool) -> Finding:
    """Check for timers that fail; their partitions make no progress."""
    if (unseen := _unseen(connection)) is not None:
        return unseen
    failing = _ask(connection, ListFailingTimers())
    if not failing:
        return "ok", "none"
    found = [
        f"{_timer(timer)} since {_when(timer.since)}, {timer.failures} failures, next retry {_when(timer.retry_at)}:"
        f" {timer.error} ({timer.sqlstate})"
        for timer in failing
    ]
    return (
        "fail",
        _listed(found),
        "other timers still fire; fix the cause, and the next retry clears it (see penstock.failing_timers)",
    )


def held_sweep(connection: psycopg.Connection[Any], embedded: bool) -> Finding:
    """Check for an open transaction that holds the sweep lock; until it ends, no timer fires."""
    if migrate.inspect(connection).schema_version is None:
        return "ok", "none: the schema is not installed"
    holders = connection.execute(
        "SELECT a.pid, a.usename, x.gid, coalesce(a.xact_start, x.prepared)"
        " FROM pg_catalog.pg_locks l"
        " LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid"
        " LEFT JOIN pg_catalog.pg_prepared_xacts x ON l.pid IS NULL AND l.virtualtransaction = '-1/' || x.transaction"
        " WHERE l.locktype = 'relation' AND l.granted AND l.relation = to_regclass('penstock.sweep_lock')"
        " AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = current_database())"
        " AND coalesce(a.xact_start, x.prepared) < clock_timestamp() - %s",
        (_SWEEP_HELD,),
    ).fetchall()
    if not holders:
        return "ok", "no transaction holds the sweep lock"
    [(pid, user, prepared, since), *_] = holders
    who = f"pid {pid} of {user}" if prepared is None else f"the prepared transaction {prepared}"
    how = f"pg_terminate_backend({pid})" if prepared is None else f"ROLLBACK PREPARED '{prepared}'"
    return (
        "fail",
        f"no timer fires: {who} holds the sweep lock in a transaction open since {_when(since)}",
        f"commit it, or end it with {how}; sweep in a separate transaction",
    )


def dead_letters(connection: psycopg.Connection[Any], embedded: bool) -> Finding:
    """Check for dead letters."""
    if (unseen := _unseen(connection)) is not None:
        return unseen
    some = [info for info in _ask(connection, ListGroups()) if info.dead_letters]
    if not some:
        return "ok", "none"
    found = [f"{info.dead_letters} in {_name(info)}" for info in some]
    return "info", _listed(found), f"see `penstock dead-letters {some[0].queue} --by-reason`"


def abandoned_stages(connection: psycopg.Connection[Any], embedded: bool) -> Finding:
    """Check for stages that Spark jobs wrote and did not publish."""
    if migrate.inspect(connection).schema_version is None:
        return "ok", "none: the schema is not installed"
    [(allowed,)] = connection.execute("SELECT has_function_privilege('penstock.list_stages()', 'EXECUTE')").fetchall()
    if not allowed:
        return "info", "permission denied (needs the admin role)", "run `penstock doctor` as an admin"
    stages = _ask(connection, ListStages())
    if not stages:
        return "ok", "none"
    old = [stage for stage in stages if stage.last_written < _now(connection) - _ABANDONED]
    found = f"{len(stages)} with {sum(stage.messages for stage in stages)} messages"
    if not old:
        return "info", f"{found}, of running jobs"
    named = f"{found}, {len(old)} not written to for {_ABANDONED}, the first of {old[0].writer}"
    return "warn", named, "left by killed Spark jobs; `penstock maintain` removes them after a day"


def flows(connection: psycopg.Connection[Any], embedded: bool) -> Finding:
    """Check for flows that are lost or failed."""
    if (unseen := _unseen(connection)) is not None:
        return unseen
    known = _ask(connection, ListFlows())
    bad = [flow for flow in known if flow.state in ("lost", "failed")]
    if not bad:
        return "ok", "none" if not known else f"{len(known)}, none lost or failed"
    found = [f"{flow.name} is {flow.state}{f' since {_when(flow.since)}' if flow.since else ''}" for flow in bad]
    return "fail", _listed(found), "restart them with `penstock run`; see `penstock flows`"


def _stuck(connection: psycopg.Connection[Any]) -> dict[tuple[str, str], GroupInfo]:
    limit = _now(connection) - _STUCK
    return {
        (info.queue, info.name): info
        for info in _ask(connection, ListGroups())
        # Work that waits for a delay or a retry is not stuck.
        if (info.ready or info.enrolling) and not info.claimed and info.oldest_since and info.oldest_since < limit
    }


def _same(info: GroupInfo, before: GroupInfo | None) -> bool:
    return before is not None and (info.oldest_since, info.ready) == (before.oldest_since, before.ready)


def _unseen(connection: psycopg.Connection[Any]) -> Finding | None:
    """Return why groups cannot be checked, or None if they can."""
    if migrate.inspect(connection).schema_version is None:
        return "ok", "none: the schema is not installed"
    [(allowed,)] = connection.execute(
        "SELECT has_function_privilege('penstock.list_groups(text)', 'EXECUTE')"
        " AND has_function_privilege('penstock.list_claims(text, text)', 'EXECUTE')"
        " AND has_function_privilege('penstock.list_failing_timers()', 'EXECUTE')"
    ).fetchall()
    return None if allowed else _DENIED


def _ask(connection: psycopg.Connection[Any], operation: Operation[T]) -> T:
    call = call_for(operation)
    return call.parse(connection.execute(call.sql.encode(), call.parameters, binary=True).fetchall())


def _now(connection: psycopg.Connection[Any]) -> datetime:
    [(now,)] = connection.execute("SELECT clock_timestamp()").fetchall()
    moment: datetime = now
    return moment


def _timer(timer: FailingTimer) -> str:
    words = [_TIMERS[timer.kind]]
    words += [f"of partition {timer.partition}"] * (timer.partition is not None)
    words += [f"of group {timer.group}"] * (timer.group is not None)
    words += [f"of queue {timer.queue}"] * (timer.queue is not None)
    return " ".join(words)


def _name(info: GroupInfo) -> str:
    return f"group {info.name} of queue {info.queue}"


def _when(moment: datetime | None) -> str:
    return "?" if moment is None else f"{moment:%Y-%m-%d %H:%M:%S%z}"


def _listed(found: list[str]) -> str:
    more = f" and {len(found) - _FEW} more" if len(found) > _FEW else ""
    return "; ".join(found[:_FEW]) + more
