"""What is stuck, why, since when, and what to do: the checks of `penstock status`.

Each check is a function from the facts of one moment to what it found. Nothing is remembered between two calls: since
when something is so follows from the recent past that samples keep. Thresholds, durations and advice are settings,
which come with the facts.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from shlex import quote
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.broker.metrics import CheckSettings, Facts, WorkInfo
    from penstock.client.client import Client

# A sample may be up to a minute late, so a past that is a minute too short counts as long enough.
_SLACK = timedelta(minutes=1)
# So many dead letters of a group are counted.
_MOST_LETTERS = 1000


@dataclass(frozen=True)
class Problem:
    """Something that is wrong: what it is about, what was found, since when, and what to do."""

    check: str
    subject: str
    found: str
    since: datetime | None
    advice: str
    queue: str | None = None
    group: str | None = None


@dataclass(frozen=True)
class Status:
    """The facts of one moment, and what the checks say of them."""

    facts: "Facts"
    problems: tuple[Problem, ...]

    @property
    def healthy(self) -> bool:
        """Whether no check found anything."""
        return not self.problems


def status(client: "Client") -> Status:
    """Sample what waits, if that takes one step, and run all checks."""
    client.sample()
    facts = client.facts()
    return Status(facts, tuple(judge(facts)))


def judge(facts: "Facts") -> Iterator[Problem]:
    """Run all checks that are on. What stands still comes first, and of each check what has been so for longest."""
    for settings in facts.checks:
        check = _CHECKS.get(settings.name)
        if check is not None and settings.enabled:
            yield from sorted(check(facts, settings), key=lambda problem: problem.since or facts.now)


def _breaker_open(facts: "Facts", check: "CheckSettings") -> Iterator[Problem]:
    for breaker in facts.breakers:
        if breaker.state != "closed" and breaker.opened >= check.threshold and _lasts(facts, breaker.opened_at, check):
            again = breaker.open_until
            then = "one message is tried now" if breaker.state == "half_open" else f"until {_clock(again)}"
            yield Problem(
                check.name,
                _name(breaker.queue, breaker.group),
                f"held, {then}: {breaker.reason}; last error: {breaker.last_error or 'unknown'}",
                breaker.opened_at,
                check.advice,
                breaker.queue,
                breaker.group,
            )
    for consumer in facts.consumers:
        if consumer.status in ("open", "half_open") and _lasts(facts, consumer.last_seen, check):
            yield Problem(
                check.name,
                f"consumer {consumer.consumer_id}",
                f"takes nothing after {consumer.consecutive_errors} errors in a row; last error: {consumer.last_error}",
                consumer.last_seen,
                check.advice,
            )


def _flow_failing(facts: "Facts", check: "CheckSettings") -> Iterator[Problem]:
    for flow in facts.flows:
        if flow.state in ("lost", "failed") or (flow.state == "backing off" and flow.failures >= check.threshold):
            why = f": {flow.error}" if flow.error else ""
            if _lasts(facts, flow.since, check):
                yield Problem(check.name, f"flow {flow.name}", f"{flow.state}{why}", flow.since, check.advice)


def _schedule_stuck(facts: "Facts", check: "CheckSettings") -> Iterator[Problem]:
    for schedule in facts.schedules:
        subject, late = f"schedule {schedule.name} of queue {schedule.queue}", None
        if schedule.due_at is not None:
            late = (facts.now - schedule.due_at).total_seconds()
        if schedule.error is not None and _lasts(facts, schedule.failed_at, check):
            found, since = f"fails: {schedule.error}", schedule.failed_at
        elif late is not None and late > check.threshold + check.duration:
            found, since = f"due for {_age(late)}, and nobody pushes it", schedule.due_at
        else:
            continue
        yield Problem(check.name, subject, found, since, check.advice, schedule.queue)


def _dead_letters_waiting(facts: "Facts", check: "CheckSettings") -> Iterator[Problem]:
    for dead in facts.dead_letters:
        if dead.letters >= min(check.threshold, _MOST_LETTERS) and _lasts(facts, dead.since, check):
            more = " or more" if dead.letters >= _MOST_LETTERS else ""
            letters = "1 dead letter waits" if dead.letters == 1 else f"{dead.letters:,}{more} dead letters wait"
            subject = _name(dead.queue, dead.group)
            yield Problem(check.name, subject, letters, dead.since, check.advice, dead.queue, dead.group)


def _workers_missing(facts: "Facts", check: "CheckSettings") -> Iterator[Problem]:
    for work in _waiting(facts):
        # The reader of an external group is a flow, which has a check of its own.
        if (work.queue, work.group) in facts.external or _held(facts, work):
            continue
        there = _live(facts, work)
        if there < check.threshold and _lasts(facts, work.oldest_at, check):
            yield _of(facts, work, check, f"{_messages(work.lag)} wait and {_consumers(there)} there", work.oldest_at)


def _workers_too_few(facts: "Facts", check: "CheckSettings") -> Iterator[Problem]:
    for work in _waiting(facts):
        there = _live(facts, work)
        growth = _growth(facts, work, work.depths, work.cold, check.duration)
        failing = any(
            breaker.state != "closed" and (breaker.queue, breaker.group) == (work.queue, work.group)
            for breaker in facts.breakers
        )
        if there and not failing and growth is not None and growth[0] >= check.threshold:
            grown, since = growth
            yield _of(facts, work, check, f"{_consumers(there)} there, and {_messages(grown)} more wait than at", since)


def _queue_growing(facts: "Facts", check: "CheckSettings") -> Iterator[Problem]:
    for work in _waiting(facts):
        growth = _growth(facts, work, work.lags, work.lag, check.duration)
        if growth is not None and growth[0] >= check.threshold:
            yield _of(facts, work, check, f"lag {work.lag:,}, which is {growth[0]:,} more", growth[1])


def _cold_growing(facts: "Facts", check: "CheckSettings") -> Iterator[Problem]:
    for work in _waiting(facts):
        growth = _growth(facts, work, work.depths, work.cold, check.duration)
        if growth is not None and growth[0] >= check.threshold:
            yield _of(facts, work, check, f"{work.cold:,} are not handed out, which is {growth[0]:,} more", growth[1])


def _cold_high(facts: "Facts", check: "CheckSettings") -> Iterator[Problem]:
    for work in _waiting(facts):
        if work.cold > check.threshold:
            since = _since_above(work.times, work.depths, check.threshold)
            if check.duration == 0 or _lasts(facts, since, check):
                yield _of(facts, work, check, f"{work.cold:,} are not handed out", since)


def _oldest_too_old(facts: "Facts", check: "CheckSettings") -> Iterator[Problem]:
    for work in _waiting(facts):
        if work.oldest_age is not None and work.oldest_age > check.threshold + check.duration:
            found = f"the oldest of {_messages(work.lag)} waits for {_age(work.oldest_age)} (did {work.oldest_did})"
            yield _of(facts, work, check, f"{found}{_held_up_by(facts, work)}", work.oldest_at)


def _orphan_queue(facts: "Facts", check: "CheckSettings") -> Iterator[Problem]:
    for queue, since in facts.orphans:
        if check.threshold > 0 and _lasts(facts, since, check):
            yield Problem(check.name, f"queue {queue}", "has messages that no group reads", since, check.advice, queue)


_CHECKS: dict[str, "Callable[[Facts, CheckSettings], Iterator[Problem]]"] = {
    "breaker_open": _breaker_open,
    "flow_failing": _flow_failing,
    "schedule_stuck": _schedule_stuck,
    "workers_missing": _workers_missing,
    "dead_letters_waiting": _dead_letters_waiting,
    "workers_too_few": _workers_too_few,
    "queue_growing": _queue_growing,
    "cold_growing": _cold_growing,
    "cold_high": _cold_high,
    "oldest_too_old": _oldest_too_old,
    "orphan_queue": _orphan_queue,
}
CHECKS = tuple(_CHECKS)


def _waiting(facts: "Facts") -> "Iterator[WorkInfo]":
    return (work for work in facts.work if work.lag > 0)


def _live(facts: "Facts", work: "WorkInfo") -> int:
    alive = {consumer.consumer_id for consumer in facts.consumers if consumer.status != "gone"}
    return sum((queue, group) == (work.queue, work.group) and who in alive for queue, group, who in facts.consuming)


def _held(facts: "Facts", work: "WorkInfo") -> int:
    """Return how many claims consumers hold. What the warm tier has claimed for its window may wait for a worker."""
    beside = (held for queue, group, held in facts.windows if (queue, group) == (work.queue, work.group))
    return next(beside, work.claimed)


def _growth(
    facts: "Facts", work: "WorkInfo", values: Sequence[int], now: int, duration: float
) -> tuple[int, datetime] | None:
    """Return by how much something grew within the duration and since when; None if less of the past is known.

    A value holds until the next one: where nothing changed there is no sample.
    """
    begin = facts.now - timedelta(seconds=duration)
    past = [(at, value) for at, value in zip(work.times, values, strict=True) if at <= facts.now]
    before = [(at, value) for at, value in past if at <= begin] or past[:1]
    if not before or before[-1][0] > begin + _SLACK:
        return None
    at, value = before[-1]
    return now - value, max(at, begin)


def _since_above(times: Sequence[datetime], values: Sequence[int], threshold: float) -> datetime | None:
    """Return the time of the first of the last values in a row that are above a threshold."""
    since = None
    for at, value in zip(times, values, strict=True):
        since = (since or at) if value > threshold else None
    return since


def _lasts(facts: "Facts", since: datetime | None, check: "CheckSettings") -> bool:
    return check.duration == 0 or (since is not None and (facts.now - since).total_seconds() >= check.duration)


def _of(facts: "Facts", work: "WorkInfo", check: "CheckSettings", found: str, since: datetime | None) -> Problem:
    if found.endswith("than at"):
        found = f"{found} {_clock(since)}"
    advice = check.advice
    if (work.queue, work.group) in facts.paused:
        # No other advice helps meanwhile.
        found = f"{found}; the group is paused"
        flow = "" if work.flow is None else f", or `penstock flows resume {quote(work.flow)}` if its flow is paused"
        advice = f"let it go on: `penstock group resume {quote(work.queue)} {quote(work.group)}`{flow}"
    return Problem(check.name, _name(work.queue, work.group), found, since, advice, work.queue, work.group)


def _held_up_by(facts: "Facts", work: "WorkInfo") -> str:
    """Say what the messages of a group wait for, as far as its partitions tell."""
    held = _held(facts, work)
    if held:
        return f"; consumers hold {_claims(held)}"
    if work.claimed:
        return f"; the window of the group has {_claims(work.claimed)}"
    if work.waiting and not work.ready:
        return "; they wait for a retry, a snooze, a delay or a limit"
    return ""


def _name(queue: str, group: str) -> str:
    return f"group {group} of queue {queue}"


def _messages(count: int) -> str:
    return "1 message" if count == 1 else f"{count:,} messages"


def _claims(count: int) -> str:
    return "1 claim" if count == 1 else f"{count:,} claims"


def _consumers(count: int) -> str:
    return "no consumer is" if count == 0 else "1 consumer is" if count == 1 else f"{count} consumers are"


def _clock(moment: datetime | None) -> str:
    return "?" if moment is None else f"{moment.astimezone():%H:%M:%S}"


def _age(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
