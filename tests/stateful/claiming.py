"""Rules of popping: from any partition or a named one, in any size, and what may come."""

from uuid import UUID

from hypothesis import strategies as st
from hypothesis.stateful import rule

from penstock import Batch

from .machine import GROUPS, PARTITIONS, Machine
from .model import Group, Held
from .texts import content

SIZES = st.sampled_from([1, 2, 3, 4, 100])


class Claiming(Machine):
    """A pop gets what is open, no more, and gets something wherever there is something."""

    @rule(kind=GROUPS, size=SIZES, width=st.integers(1, 3), auto=st.sampled_from([False, False, False, True]))
    def pop_any(self, kind: str, size: int, width: int, auto: bool) -> None:
        self.pop(self.group(kind), size, width, auto)

    @rule(kind=GROUPS)
    def pop_one(self, kind: str) -> None:
        self.pop(self.group(kind), 1)

    @rule(kind=GROUPS)
    def pop_several(self, kind: str) -> None:
        self.pop(self.group(kind), 4)

    @rule(kind=GROUPS, partition=PARTITIONS, size=SIZES)
    def pop_named(self, kind: str, partition: int, size: int) -> None:
        self.answer()
        group, name = self.group(kind), self.names[partition]
        lane = self.model.partitions.get(name)
        batch = self.client.pop(self.queue, group.name, partition=name, max_messages=size)
        assert (batch is None) == (lane is None or not self.model.open_offsets(group, lane))
        if batch is not None:
            self.took(group, batch, size)

    @rule(mode=st.sampled_from(["ordered", "shared"]), subscription=st.sampled_from(["all", "new", "new"]))
    def come_late(self, mode: str, subscription: str) -> None:
        if (late := self.model.groups.get("late" + self.suffix)) is not None:
            self.pop(late, 3)
        else:
            self.answer()
            self.new_group("late", mode, 2, subscription)

    def pop(self, group: Group, size: int, width: int = 1, auto: bool = False) -> None:
        self.answer()
        ready = [lane.name for lane, _ in self.model.lanes(group) if self.model.open_offsets(group, lane)]
        batch = self.client.pop(self.queue, group.name, max_messages=size, max_partitions=width, auto_ack=auto)
        assert (batch is None) == (not ready), f"{batch} though there is work in {ready}"
        if batch is not None:
            if group.mode == "ordered":
                # Fewer where a sweep of the client, which goes on beside, has a partition locked.
                assert 1 <= len(batch.claims) <= min(width, len(ready))
            self.took(group, batch, size)

    def took(self, group: Group, batch: Batch, limit: int) -> None:
        """Compare what was delivered with what may be, and take note of it."""
        taken = []
        for claim in batch.claims:
            lane = self.model.partition(group, claim.partition)
            offsets = [message.offset for message in claim.messages]
            assert self.model.may_come(group, lane, limit, offsets), f"{offsets} came of {lane.name!r}"
            assert [content(message) for message in claim.messages] == [lane.contents[offset] for offset in offsets]
            held = Held(group.name, lane.name, claim.lease_id or UUID(int=0), claim.start, claim.stop)
            self.model.deliver(held, offsets)
            attempts = group.tracks[lane.name].attempts
            assert [message.attempt for message in claim.messages] == [attempts[offset] for offset in offsets]
            taken.append(held)
            if batch.settled:
                self.model.ack(held)
                for offset in offsets:
                    attempts[offset] = 0
        self.keep(batch, taken)
