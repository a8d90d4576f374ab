# Generated from async_operating.py by tools/generate_sync.py. Do not edit: change the source and run `make generate`.
"""The part of a synchronous client that an operator uses: groups, claims, dead letters, archives, flows."""

from collections.abc import Callable
from datetime import datetime
from typing import Any

from penstock.broker.archives import ArchiveInfo
from penstock.broker.arguments import Seconds, as_text, delay_time
from penstock.broker.claims import Lease
from penstock.broker.flows import ActionInfo, FlowInfo
from penstock.broker.health import BreakerInfo, ConsumerInfo
from penstock.broker.infos import (
    Check,
    ClaimInfo,
    DeadLetterInfo,
    DeadReason,
    GroupInfo,
    SeekResult,
    Transition,
)
from penstock.broker.metrics import CheckSettings, Facts, Metric, Rollup, WorkInfo
from penstock.broker.operations.archives import ListArchives
from penstock.broker.operations.claiming import Release
from penstock.broker.operations.flows import ForgetFlow, ListActions, ListFlows, PauseFlow
from penstock.broker.operations.groups import (
    ConfigureGroup,
    CountDeadLetters,
    CreateGroup,
    DeleteGroup,
    Discard,
    GetHistory,
    GetLag,
    ListClaims,
    ListDeadLetters,
    ListGroups,
    PauseGroup,
    Redrive,
    Resync,
    Seek,
    Verify,
)
from penstock.broker.operations.health import ListBreakers, ListConsumers, ResetBreaker, ResetConsumer
from penstock.broker.operations.log import ConfigureDatabase, PauseQueue
from penstock.broker.operations.metrics import (
    ConfigureCheck,
    GetFacts,
    ListChecks,
    ListMetrics,
    ListRollups,
    ListWork,
    Sample,
)
from penstock.broker.operations.operation import Operation
from penstock.broker.operations.rules import AddRule, DeleteRule, ListRules, MatchDeadLetters, RunRules
from penstock.broker.operations.warm import ListQueuedWork, ListWarmGroups
from penstock.broker.operations.workers import ListTasks
from penstock.broker.rules import RuleInfo, RuleMatch
from penstock.broker.tasks import TaskInfo
from penstock.broker.warm import WarmGroup, WorkRow
from penstock.client.keys import Keys
from penstock.client.seeking import SeekTotal
from penstock.errors import NotFound

# Dead letters are redriven and discarded in transactions of this many.
_CHUNK = 1000


class Operator(Keys):
    """The part of a client that looks at groups and changes them."""

    def configure_database(self, *, create_on_first_use: bool | None = None) -> dict[str, Any]:
        """Change what holds for the whole database, and return it; without arguments, only return it.

        With `create_on_first_use=False` no push, pop or configure makes a queue, and no pop a group.
        """
        return self._transport.run(ConfigureDatabase(create_on_first_use))

    def groups(self, queue: str | None = None) -> list[GroupInfo]:
        """Describe the groups of a queue, or of all queues."""
        return self._transport.run(ListGroups(queue))

    def create_group(
        self,
        queue: str,
        group: str,
        *,
        mode: str = "ordered",
        subscription: str | datetime = "all",
        **settings: Any,
    ) -> None:
        """Create a group; raises AlreadyExists. A pop creates one too, with defaults."""
        self._transport.run(CreateGroup.reading(queue, group, mode, subscription, settings))

    def configure_group(self, queue: str, group: str, **settings: Any) -> dict[str, Any]:
        """Override settings of the queue for one group (None: the queue's again); returns what now holds."""
        return self._transport.run(ConfigureGroup(queue, group, settings))

    def pause_queue(self, queue: str) -> bool:
        """Refuse pushes to a queue until it is resumed; returns whether that changed anything."""
        return self._transport.run(PauseQueue(queue))

    def resume_queue(self, queue: str) -> bool:
        """Take pushes to a paused queue again; returns whether that changed anything."""
        return self._transport.run(PauseQueue(queue, paused=False))

    def pause_group(self, queue: str, group: str = "default") -> bool:
        """Deliver nothing more to a group until it is resumed; returns whether that changed anything."""
        return self._transport.run(PauseGroup(queue, group))

    def resume_group(self, queue: str, group: str = "default") -> bool:
        """Deliver to a paused group again; returns whether that changed anything."""
        return self._transport.run(PauseGroup(queue, group, paused=False))

    def delete_group(self, queue: str, group: str) -> None:
        """Delete a group with its positions and dead letters."""
        self._transport.run(DeleteGroup(queue, group))

    def lag(self, queue: str, group: str = "default") -> int:
        """Return how many messages a group has still to acknowledge."""
        return self._transport.run(GetLag(queue, group))

    def seek(
        self,
        queue: str,
        group: str,
        to: int | str | datetime,
        *,
        partition: str | None = None,
        preview: bool = False,
        progress: Callable[[SeekResult], None] | None = None,
    ) -> SeekResult:
        """Move a group to 'earliest', 'latest', an offset or a time; `preview` only says what that would do.

        Goes through the partitions in chunks beside live traffic; claims that are held there lose their lease.
        """
        total = SeekTotal()
        while (after := total.next_chunk()) is not None:
            chunk = self._transport.run(Seek.to(queue, group, to, partition, preview, after))
            total.add(chunk)
            if progress is not None:
                progress(total.so_far())
        return total.so_far()

    def claims(self, queue: str | None = None, group: str | None = None) -> list[ClaimInfo]:
        """List the claims that are held now, the one that ends first at the front."""
        return self._transport.run(ListClaims(queue, group))

    def release_claim(self, claim: ClaimInfo) -> bool:
        """Take a claim away from whoever holds it; its messages are delivered again at once."""
        lease = claim.lease_id if claim.shared else None
        return self._transport.run(Release(Lease(claim.group_id, claim.partition_id, lease)))

    def history(self, queue: str, group: str, partition: str, *, limit: int = 100) -> list[Transition]:
        """Tell what happened to a partition in a group, newest first."""
        return self._transport.run(GetHistory(queue, group, as_text(partition), limit))

    def dead_letters(
        self,
        queue: str,
        group: str | None = None,
        *,
        reason: str | None = None,
        after: int = 0,
        limit: int = 100,
    ) -> list[DeadLetterInfo]:
        """List dead letters, oldest first; `after` is the last id of the page before."""
        return self._transport.run(ListDeadLetters(queue, group, reason, after, limit))

    def dead_reasons(self, queue: str, group: str | None = None) -> list[DeadReason]:
        """Count dead letters by reason."""
        return self._transport.run(CountDeadLetters(queue, group))

    def redrive(
        self,
        queue: str,
        group: str | None = None,
        *,
        reason: str | None = None,
        ids: list[int] | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> int:
        """Deliver dead letters again, to the group that failed and to no other; returns how many."""
        return self._in_chunks(Redrive(queue, group, reason, ids, _CHUNK), progress)

    def discard(
        self,
        queue: str,
        group: str | None = None,
        *,
        reason: str | None = None,
        ids: list[int] | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> int:
        """Throw dead letters away; returns how many."""
        return self._in_chunks(Discard(queue, group, reason, ids, _CHUNK), progress)

    def verify(self) -> list[Check]:
        """Compare state and log; every count must be 0."""
        return self._transport.run(Verify())

    def resync(self) -> int:
        """Repair readiness after a restore; harmless at any time. Returns how much was repaired."""
        repaired, after = 0, 0
        while True:
            chunk = self._transport.run(Resync(after))
            repaired += chunk.repaired
            if chunk.next_partition is None:
                return repaired
            after = chunk.next_partition

    def _in_chunks(self, operation: Operation[int], progress: Callable[[int], None] | None) -> int:
        total = 0
        while done := self._transport.run(operation):
            total += done
            if progress is not None:
                progress(total)
        return total

    def consumers(self) -> list[ConsumerInfo]:
        """Describe those who consume, or did so within a day, and how they fare; the one seen last comes first."""
        return self._transport.run(ListConsumers())

    def reset_consumer(self, consumer: str) -> bool:
        """Let a consumer count from 0, and close its own circuit breaker with its next report, within half a minute.

        One that is gone is deleted. Returns whether it was.
        """
        return self._transport.run(ResetConsumer(consumer))

    def breakers(self) -> list[BreakerInfo]:
        """Describe the circuit breakers of groups whose handlers have failed, open ones first."""
        return self._transport.run(ListBreakers())

    def reset_breaker(self, queue: str, group: str) -> bool:
        """Close the circuit breaker of a group, so that its messages are handed out again; returns if it was open."""
        return self._transport.run(ResetBreaker(queue, group))

    def metrics(
        self, queue: str, metric: str | None = None, *, since: datetime | None = None, limit: int = 100
    ) -> list[Metric]:
        """Return the newest values of a queue's series, or of one metric of it, newest first."""
        return self._transport.run(ListMetrics(queue, metric, since, limit))

    def rollups(
        self, queue: str, metric: str | None = None, *, resolution: str = "minute", limit: int = 100
    ) -> list[Rollup]:
        """Return the newest rollups of a queue's series by 'minute', 'hour' or 'day', which `penstock rollup` makes."""
        return self._transport.run(ListRollups(queue, resolution, metric, limit))

    def work(self, queue: str | None = None) -> list[WorkInfo]:
        """Describe what waits for each group, and for each action, as it was last sampled; it costs a row per group."""
        return self._transport.run(ListWork(queue))

    def sample(self, *, max_entries: int = 2000, min_age: Seconds = 0.0) -> bool:
        """Take a step of a sample of what waits; returns whether that completed one.

        Maintenance and consumers do this by themselves, with a `min_age`: a new sample begins when the last one is so
        many seconds old, and steps are followed by pauses.
        """
        step = self._transport.run(Sample(max_entries, delay_time(min_age) or 0.0))
        return step is not None and step.complete

    def facts(self) -> Facts:
        """Return all that checks judge, as of one moment; `penstock status` shows what they find."""
        return self._transport.run(GetFacts())

    def checks(self) -> list[CheckSettings]:
        """Describe the checks of `penstock status` with their settings."""
        return self._transport.run(ListChecks())

    def configure_check(self, name: str, **settings: Any) -> None:
        """Change `enabled`, `threshold`, `duration` or `advice` of a check; None sets one back to its default."""
        self._transport.run(ConfigureCheck(name, settings))

    def add_rule(
        self,
        name: str,
        *,
        queue: str | None = None,
        group: str | None = None,
        reason: str | None = None,
        error: str | None = None,
        backoff: Seconds = 60.0,
        backoff_factor: float = 2.0,
        max_redrives: int = 3,
    ) -> None:
        """Redrive dead letters that match by themselves, from now on; raises AlreadyExists.

        `error` is a text that the last error contains. A message is redriven `backoff` seconds after it died, and each
        further time after a wait that is `backoff_factor` times as long, up to `max_redrives` times.
        """
        wait = delay_time(backoff) or 0.0
        self._transport.run(AddRule(name, queue, group, reason, error, wait, backoff_factor, max_redrives))

    def match_dead_letters(
        self,
        *,
        queue: str | None = None,
        group: str | None = None,
        reason: str | None = None,
        error: str | None = None,
        backoff: Seconds = 60.0,
        backoff_factor: float = 2.0,
        max_redrives: int = 3,
        after: int = 0,
        limit: int = 100,
    ) -> list[RuleMatch]:
        """Say what a rule with these conditions would do now, without adding it; `after` is the last id of a page."""
        wait = delay_time(backoff) or 0.0
        conditions = (queue, group, reason, error, wait, backoff_factor, max_redrives)
        return self._transport.run(MatchDeadLetters(*conditions, after, limit))

    def rules(self) -> list[RuleInfo]:
        """Describe the rules for dead letters."""
        return self._transport.run(ListRules())

    def test_rule(self, name: str, *, limit: int = 100) -> list[RuleMatch]:
        """Say what a rule would do now with the dead letters that match it; raises NotFound. It changes nothing."""
        for rule in self.rules():
            if rule.name == name:
                return self.match_dead_letters(
                    queue=rule.queue,
                    group=rule.group,
                    reason=rule.reason,
                    error=rule.error,
                    backoff=rule.backoff,
                    backoff_factor=rule.backoff_factor,
                    max_redrives=rule.max_redrives,
                    limit=limit,
                )
        raise NotFound(f'there is no rule "{name}"; `penstock rule list` lists those there are')

    def delete_rule(self, name: str) -> None:
        """Delete a rule; dead letters stay as they are."""
        self._transport.run(DeleteRule(name))

    def run_rules(self) -> int:
        """Redrive what is due by a rule, and return how many; maintenance and consumers do this by themselves."""
        return self._transport.run(RunRules())

    def archives(self, queue: str | None = None) -> list[ArchiveInfo]:
        """List what is archived of a queue, or of all: the runs of `penstock archive`, the oldest first."""
        return self._transport.run(ListArchives(queue))

    def flows(self) -> list[FlowInfo]:
        """Describe the flows and their status."""
        return self._transport.run(ListFlows())

    def actions(self, flow: str | None = None) -> list[ActionInfo]:
        """List the actions of a flow, or of all flows: the registry."""
        return self._transport.run(ListActions(flow))

    def tasks(self, flow: str | None = None) -> list[TaskInfo]:
        """List the items whose handlers run, the longest running first, as workers have reported in 30 seconds."""
        return self._transport.run(ListTasks(flow))

    def windows(self) -> list[WarmGroup]:
        """List the groups whose setting `warm` is on: who keeps their windows in Valkey, and how these fare."""
        return self._transport.run(ListWarmGroups())

    def queued_work(self) -> list[WorkRow]:
        """List what waits for each group, apart for what is in Valkey (warm) and in PostgreSQL alone (cold)."""
        return self._transport.run(ListQueuedWork())

    def pause_flow(self, flow: str) -> None:
        """Pause a flow, wherever it runs; what it has not published it reads again when it goes on."""
        self._transport.run(PauseFlow(flow, True))

    def resume_flow(self, flow: str) -> None:
        """Let a paused flow go on."""
        self._transport.run(PauseFlow(flow, False))

    def forget_flow(self, flow: str) -> None:
        """Remove a flow that no longer runs from the registry; its queues, groups and dead letters stay."""
        self._transport.run(ForgetFlow(flow))
