"""Anything that clients may do, in any order, compared after each step with a model of what penstock promises.

PENSTOCK_MODEL_EXAMPLES asks for more examples than the few that each run of the tests has, and for fresh ones.
"""

import os
from itertools import count
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from penstock import Batch, Client, LeaseLost, Message
from penstock.engine.messages import encode

from .model import Group, Held, Model

EXAMPLES = int(os.environ.get("PENSTOCK_MODEL_EXAMPLES", "0"))
PARTITIONS = st.sampled_from("abc")
# Chosen before it is known what there is to choose from: what a pop finds may differ from run to run.
PICKS = st.integers(0, 1000)
GROUPS = st.sampled_from(["ordered", "patient", "shared"])
queue_numbers = count()
# Every seventh is null.
values = (number if number % 7 else None for number in count())


class Penstock(RuleBasedStateMachine):
    """A queue with an ordered group, a second one with more attempts, and a shared one."""

    client: Client

    def __init__(self) -> None:
        super().__init__()
        self.queue = f"q{next(queue_numbers)}"
        self.model = Model()
        self.batches: list[tuple[Batch, list[Held]]] = []
        # What waits for its time, by id, and the offsets of the messages that have a dedupe id.
        self.later: dict[int, tuple[str, list[int | None]]] = {}
        self.seen: dict[tuple[str, str], int] = {}

    @initialize()
    def begin(self) -> None:
        self.client.create(self.queue, backoff_initial=0, dedupe_window=3600)
        self.new_group("ordered", "ordered", 2)
        self.new_group("patient", "ordered", 5)
        self.new_group("shared", "shared", 2)

    def teardown(self) -> None:
        self.client.delete(self.queue)

    def new_group(self, name: str, mode: str, max_attempts: int, subscription: str = "all") -> None:
        self.client.create_group(self.queue, name, mode=mode, max_attempts=max_attempts, subscription=subscription)
        self.model.add_group(Group(name, mode, max_attempts), only_new=subscription == "new")

    # Pushing

    @rule(partition=PARTITIONS, size=st.integers(1, 5))
    def push(self, partition: str, size: int) -> None:
        pushed = [next(values) for _ in range(size)]
        result = self.client.push(self.queue, pushed, partition=partition)
        assert result.first_offset == self.model.push(partition, pushed)

    @rule(partitions=st.lists(PARTITIONS, min_size=1, max_size=6))
    def push_many(self, partitions: list[str]) -> None:
        pairs = [(partition, next(values)) for partition in partitions]
        self.client.push_many(self.queue, pairs)
        for partition, value in pairs:
            self.model.push(partition, [value])

    @rule(partition=PARTITIONS, names=st.lists(st.sampled_from("xyz"), min_size=1, max_size=4))
    def push_once(self, partition: str, names: list[str]) -> None:
        given = [(name, next(values)) for name in names]
        fresh = [
            place
            for place, name in enumerate(names)
            if (partition, name) not in self.seen and name not in names[:place]
        ]
        result = self.client.push(
            self.queue, [Message(value, dedupe_id=name) for name, value in given], partition=partition
        )
        assert result.count == len(fresh)
        if fresh:
            first = self.model.push(partition, [given[place][1] for place in fresh])
            assert result.first_offset == first
            self.seen.update({(partition, names[place]): first + nth for nth, place in enumerate(fresh)})
        assert [(each.position, each.offset) for each in result.duplicates] == [
            (place, self.seen[partition, name]) for place, name in enumerate(names) if place not in fresh
        ]

    @rule(partition=PARTITIONS, size=st.integers(1, 3))
    def push_for_later(self, partition: str, size: int) -> None:
        pushed = [next(values) for _ in range(size)]
        scheduled = self.client.push(self.queue, pushed, partition=partition, delay=3600).scheduled
        assert scheduled is not None
        self.later[scheduled.ids[0]] = (partition, pushed)

    @rule(pick=PICKS, cancelled=st.booleans())
    def come_due(self, pick: int, cancelled: bool) -> None:
        if not self.later:
            return
        chosen = list(self.later)[pick % len(self.later)]
        partition, pushed = self.later.pop(chosen)
        if cancelled:
            assert self.client.cancel(chosen) == [chosen]
            return
        with self.client.transaction() as tx:
            tx.connection.execute("UPDATE penstock.scheduled SET due_at = now() WHERE scheduled_id = %s", (chosen,))
        self.client.sweep()
        self.model.push(partition, pushed)

    def forget(self, partition: str | None) -> int:
        """Take note that a partition, or all of them, lost what waits and what was seen; return how much waited."""
        gone = [wanted for wanted, (place, _) in self.later.items() if partition in (None, place)]
        self.seen = {place: offset for place, offset in self.seen.items() if partition not in (None, place[0])}
        return sum(len(self.later.pop(wanted)[1]) for wanted in gone)

    # Claiming

    @rule(
        name=GROUPS, size=st.integers(1, 4), width=st.integers(1, 3), auto=st.sampled_from([False, False, False, True])
    )
    def pop_any(self, name: str, size: int, width: int, auto: bool) -> None:
        group = self.model.groups[name]
        ready = [lane for lane, _ in self.model.lanes(group) if self.model.open_offsets(group, lane)]
        batch = self.client.pop(self.queue, name, max_messages=size, max_partitions=width, auto_ack=auto)
        assert (batch is None) == (not ready), f"{batch} though there is work in {ready}"
        if batch is not None:
            if group.mode == "ordered":
                assert len(batch.claims) == min(width, len(ready))
            self.took(group, batch, size)

    @rule(name=GROUPS, partition=PARTITIONS, size=st.integers(1, 4))
    def pop_named(self, name: str, partition: str, size: int) -> None:
        group = self.model.groups[name]
        lane = self.model.partitions.get(partition)
        batch = self.client.pop(self.queue, name, partition=partition, max_messages=size)
        assert (batch is None) == (lane is None or not self.model.open_offsets(group, lane))
        if batch is not None:
            self.took(group, batch, size)

    def took(self, group: Group, batch: Batch, limit: int) -> None:
        """Compare what was delivered with what may be, and take note of it."""
        taken = []
        for claim in batch.claims:
            lane = self.model.partition(group, claim.partition)
            offsets = [message.offset for message in claim.messages]
            if group.mode == "ordered":
                assert offsets == self.model.expect(group, lane, limit)
            else:
                assert set(offsets) <= set(self.model.open_offsets(group, lane))
                assert offsets == list(range(offsets[0], offsets[0] + len(offsets)))
                assert len(offsets) <= limit
            assert [message.json() for message in claim.messages] == [lane.values[offset] for offset in offsets]
            held = Held(group.name, lane.name, claim.lease_id or UUID(int=0), claim.start, claim.stop)
            self.model.deliver(held, offsets)
            deliveries = group.tracks[lane.name].deliveries
            assert [message.attempt for message in claim.messages] == [deliveries[offset] for offset in offsets]
            taken.append(held)
            if batch.settled:
                self.model.ack(held)
                for offset in offsets:
                    deliveries[offset] = 0
        self.keep(batch, taken)

    # Settling

    def choose(self, pick: int) -> tuple[Batch, list[Held], bool] | None:
        """Return a batch that was not settled, what it holds, and whether all of its leases are live."""
        if not self.batches:
            return None
        batch, held = self.batches.pop(pick % len(self.batches))
        return batch, held, all(self.model.holds(claim) for claim in held)

    @rule(pick=PICKS)
    def ack(self, pick: int) -> None:
        if (chosen := self.choose(pick)) is None:
            return
        batch, held, live = chosen
        self.settle(batch.ack, live)
        for claim in held:
            if self.model.holds(claim):
                self.model.ack(claim)

    @rule(pick=PICKS, where=PICKS)
    def ack_up_to(self, pick: int, where: int) -> None:
        if (chosen := self.choose(pick)) is None:
            return
        batch, held, live = chosen
        if live and len(held) == 1:
            (claim,) = held
            first = self.model.holds(claim)[0]
            up_to = first + where % (claim.stop - first + 1)
            batch.ack(up_to=up_to)
            self.model.ack(claim, up_to)
            assert batch.settled == (not self.model.holds(claim))
        self.keep(batch, held)

    @rule(pick=PICKS, where=PICKS)
    def ack_message(self, pick: int, where: int) -> None:
        if (chosen := self.choose(pick)) is None:
            return
        batch, held, live = chosen
        if live and batch.claims[0].shared:
            left = [(claim, offset) for claim in held for offset in self.model.holds(claim)]
            claim, offset = left[where % len(left)]
            message = next(m for m in batch.messages if (m.partition, m.offset) == (claim.partition, offset))
            batch.ack_message(message)
            self.model.ack(claim, only=offset)
        self.keep(batch, held)

    @rule(pick=PICKS)
    def nack(self, pick: int) -> None:
        if (chosen := self.choose(pick)) is not None:
            self.fail(*chosen, None)

    @rule(pick=PICKS, where=PICKS)
    def nack_at_an_offset(self, pick: int, where: int) -> None:
        if (chosen := self.choose(pick)) is None:
            return
        batch, held, live = chosen
        if live and len(held) == 1:
            left = self.model.holds(held[0])
            self.fail(batch, held, live, left[where % len(left)])
        else:
            self.keep(batch, held)

    def fail(self, batch: Batch, held: list[Held], live: bool, offset: int | None) -> None:
        self.settle(lambda: batch.nack(offset, reason="said so"), live)
        for claim in held:
            if self.model.holds(claim):
                self.model.fail(claim, offset)

    @rule(pick=PICKS)
    def release(self, pick: int) -> None:
        if (chosen := self.choose(pick)) is None:
            return
        batch, held, _ = chosen
        batch.release()
        for claim in held:
            if self.model.holds(claim):
                self.model.release(claim)

    @rule(pick=PICKS)
    def renew(self, pick: int) -> None:
        if (chosen := self.choose(pick)) is None:
            return
        batch, held, live = chosen
        self.settle(batch.renew, live)
        self.keep(batch, held)

    @rule(pick=PICKS)
    def expire(self, pick: int) -> None:
        if (chosen := self.choose(pick)) is None:
            return
        batch, held, live = chosen
        if live:
            batch.renew(0.001)
            leases = {claim.lease_id for claim in batch.claims}
            while leases & {claim.lease_id for claim in self.client.claims(self.queue)}:
                self.client.sweep()
            for claim in held:
                self.model.fail(claim, None)
        self.keep(batch, held)

    def keep(self, batch: Batch, held: list[Held]) -> None:
        if not batch.settled:
            self.batches.append((batch, held))

    @staticmethod
    def settle(how: Any, live: bool) -> None:
        """Do it; where a lease is gone it must say so."""
        if live:
            how()
        else:
            with pytest.raises(LeaseLost):
                how()

    # Operating

    @rule(name=GROUPS, to=st.one_of(st.sampled_from(["earliest", "latest"]), st.integers(0, 12)), partition=PARTITIONS)
    def seek(self, name: str, to: int | str, partition: str) -> None:
        lane = self.model.partitions.get(partition)
        if lane is None:
            return
        position = {"earliest": lane.floor, "latest": lane.head}.get(str(to), to)
        self.client.seek(self.queue, name, to, partition=partition)
        clamped = min(max(int(position), lane.floor), lane.head)
        self.model.seek(self.model.groups[name], partition, clamped)

    @rule(partition=st.one_of(st.none(), PARTITIONS), how=st.sampled_from(["purge", "purge", "delete"]))
    def remove(self, partition: str | None, how: str) -> None:
        if partition is not None and partition not in self.model.partitions:
            return
        if how == "purge":
            dropped = self.client.purge(self.queue, partition=partition)
            assert dropped == self.model.purge(partition) + self.forget(partition)
        elif partition is not None:
            self.client.delete(self.queue, partition=partition)
            self.model.delete_partition(partition)
            self.forget(partition)

    @rule(name=GROUPS)
    def redrive(self, name: str) -> None:
        group = self.model.groups[name]
        group_id = next(iter(self.group_ids(name)), 0)
        assert self.client.redrive(self.queue, name) == self.model.redrive(group, f"~redrive/{group_id}")

    def group_ids(self, name: str) -> list[int]:
        with self.client.transaction() as tx:
            rows = tx.connection.execute(
                "SELECT g.group_id FROM penstock.consumer_groups g JOIN penstock.queues q USING (queue_id)"
                " WHERE q.name = %s AND g.name = %s",
                (self.queue, name),
            )
            return [group_id for (group_id,) in rows]

    @rule(name=GROUPS, keep=st.integers(0, 2))
    def discard(self, name: str, keep: int) -> None:
        letters = self.client.dead_letters(self.queue, name)
        ids = [letter.dead_letter_id for letter in letters[keep:]]
        if ids:
            assert self.client.discard(self.queue, name, ids=ids) == len(ids)
            del self.model.groups[name].letters[keep:]

    @rule()
    def look_after(self) -> None:
        self.client.sweep()
        for _ in self.client.maintain(min_segments=2):
            pass
        assert self.client.resync() == 0

    @rule(mode=st.sampled_from(["ordered", "shared"]), subscription=st.sampled_from(["all", "new"]))
    def come_late(self, mode: str, subscription: str) -> None:
        if "late" in self.model.groups:
            self.pop_any("late", 3, 1, False)
        else:
            self.new_group("late", mode, 2, subscription)

    @rule(name=GROUPS)
    def pop_one(self, name: str) -> None:
        self.pop_any(name, 1, 1, False)

    @rule(name=GROUPS)
    def pop_several(self, name: str) -> None:
        self.pop_any(name, 4, 1, False)

    # What must hold after each step

    @invariant()
    def groups_agree(self) -> None:
        found = {info.name: (info.lag, info.dead_letters) for info in self.client.groups(self.queue)}
        groups = self.model.groups
        assert found == {name: (self.model.lag(group), len(group.letters)) for name, group in groups.items()}

    @invariant()
    def what_waits_agrees(self) -> None:
        assert {each.scheduled_id for each in self.client.scheduled(self.queue)} == set(self.later)

    @invariant()
    def claims_agree(self) -> None:
        assert {claim.lease_id for claim in self.client.claims(self.queue)} == self.model.leases()

    @invariant()
    def dead_letters_agree(self) -> None:
        for group in self.model.groups.values():
            if group.letters:
                letters = self.client.dead_letters(self.queue, group.name)
                found = [(letter.offset, letter.value, letter.attempts) for letter in letters]
                expected = [(letter.offset, encode(letter.value), letter.attempts) for letter in group.letters]
                assert sorted(found, key=str) == sorted(expected, key=str)

    @invariant()
    def state_and_log_agree(self) -> None:
        assert [check for check in self.client.verify() if check.violations] == []


def test_whatever_clients_do_the_promises_hold(dsn: str) -> None:
    class OnThisDatabase(Penstock):
        client = Client(dsn)

    try:
        run_state_machine_as_test(
            OnThisDatabase,
            settings=settings(
                max_examples=EXAMPLES or 40,
                stateful_step_count=40,
                deadline=None,
                derandomize=not EXAMPLES,
                database=None,
                suppress_health_check=list(HealthCheck),
                phases=[Phase.generate, Phase.shrink] if EXAMPLES else [Phase.generate],
            ),
        )
    finally:
        OnThisDatabase.client.close()
