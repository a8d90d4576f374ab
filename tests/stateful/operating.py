"""Rules of operating: seek, purge, delete, redrive, discard, retention, merging, priorities, resync."""

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from .machine import GROUPS, KINDS, PARTITIONS, Machine, has_letters


class Operating(Machine):
    """What an operator does moves or removes what it says, and nothing else."""

    @rule(kind=GROUPS, to=st.one_of(st.sampled_from(["earliest", "latest"]), st.integers(0, 12)), partition=PARTITIONS)
    def seek(self, kind: str, to: int | str, partition: int) -> None:
        self.answer()
        name, group = self.names[partition], self.group(kind)
        lane = self.model.partitions.get(name)
        if lane is None:
            return
        position = {"earliest": lane.floor, "latest": lane.head}.get(str(to), to)
        self.client.seek(self.queue, group.name, to, partition=name)
        self.model.seek(group, name, min(max(int(position), lane.floor), lane.head))

    @rule(partition=st.one_of(st.none(), PARTITIONS), how=st.sampled_from(["purge", "purge", "delete"]))
    def remove(self, partition: int | None, how: str) -> None:
        self.answer()
        name = None if partition is None else self.names[partition]
        if name is not None and name not in self.model.partitions:
            return
        if how == "purge":
            dropped = self.client.purge(self.queue, partition=name)
            assert dropped == self.model.purge(name) + self.forget(name)
        elif name is not None:
            self.client.delete(self.queue, partition=name)
            self.model.delete_partition(name)
            self.forget(name)

    def forget(self, partition: str | None) -> int:
        """Take note that a partition, or all of them, lost what waits and what was seen; return how much waited."""
        gone = [wanted for wanted, (place, _) in self.later.items() if partition in (None, place)]
        self.seen = {place: offset for place, offset in self.seen.items() if partition not in (None, place[0])}
        return sum(len(self.later.pop(wanted)[1]) for wanted in gone)

    @precondition(lambda machine: len(machine.model.groups) > len(KINDS))
    @rule()
    def delete_late_group(self) -> None:
        late = self.model.groups.pop("late" + self.suffix)
        self.client.delete_group(self.queue, late.name)

    @precondition(has_letters)
    @rule(kind=GROUPS)
    def redrive(self, kind: str) -> None:
        self.answer()
        group = self.group(kind)
        lane = f"~redrive/{self.group_id(group.name)}"
        assert self.client.redrive(self.queue, group.name) == self.model.redrive(group, lane)

    @precondition(has_letters)
    @rule(kind=GROUPS, keep=st.integers(0, 2))
    def discard(self, kind: str, keep: int) -> None:
        group = self.group(kind)
        letters = self.client.dead_letters(self.queue, group.name)
        ids = [letter.dead_letter_id for letter in letters[keep:]]
        if ids:
            assert self.client.discard(self.queue, group.name, ids=ids) == len(ids)
            del group.letters[keep:]

    @rule(partition=PARTITIONS, priority=st.integers(-1, 1))
    def prefer(self, partition: int, priority: int) -> None:
        if self.names[partition] in self.model.partitions:
            self.client.configure(self.queue, partition=self.names[partition], priority=priority)

    @rule()
    def look_after(self) -> None:
        self.answer()
        self.client.sweep()
        for _ in self.client.maintain(min_segments=2):
            pass
        assert self.client.resync() == 0

    @rule(kept=st.integers(1, 30), rule_=st.sampled_from(["keep_until_consumed", "drop_and_count"]))
    def retain(self, kept: int, rule_: str) -> None:
        """Keep so many bytes: what a group still needs is dropped only where the queue's rule says so."""
        self.answer()
        self.client.configure(self.queue, retention_bytes=kept, retention_rule=rule_)
        for _ in self.client.maintain(min_segments=2):
            pass
        self.client.configure(self.queue, retention_bytes=None, retention_rule=None)
        floors = dict(self.floors())
        lanes = [group.lane for group in self.model.groups.values() if group.lane]
        for lane in [*self.model.partitions.values(), *lanes]:
            floor = floors[lane.name]
            needed = self.model.consumed_to(lane.name) if rule_ == "keep_until_consumed" else lane.head
            assert lane.floor <= floor <= max(needed, lane.floor), f"{lane.name}: dropped to {floor}, needed {needed}"
            lane.floor = floor

    def floors(self) -> list[tuple[str, int]]:
        rows = self.sql.execute(
            "SELECT p.name, s.floor_offset FROM penstock.partitions p JOIN penstock.queues q USING (queue_id)"
            " CROSS JOIN LATERAL penstock.partition_span(p.partition_id) s WHERE q.name = %s",
            (self.queue,),
        )
        return [(name, floor) for name, floor in rows]
