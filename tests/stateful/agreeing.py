"""What must hold after each step, and what must be left when everything has been consumed."""

import sys
from collections import Counter

from hypothesis.stateful import invariant

from .claiming import Claiming
from .texts import content

# What a quiet (group, partition) may keep in the journal: its state, and the row before it.
JOURNAL_ROWS = 4


class Agreeing(Claiming):
    """The database says what the model says."""

    steps = 0

    @invariant()
    def groups_agree(self) -> None:
        if self.unanswered:
            return
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
                found = Counter((letter.offset, content(letter), letter.attempts) for letter in letters)
                assert found == Counter((letter.offset, letter.content, letter.attempts) for letter in group.letters)

    @invariant()
    def only_what_failed_is_dead(self) -> None:
        """A message pays for its own failures, and where nobody knows whose it was."""
        for group in self.model.groups.values():
            for letter in group.letters:
                assert letter.failures == letter.attempts, f"{letter} in a group that is {group.mode}"

    @invariant()
    def state_and_log_agree(self) -> None:
        # It takes as long as all the rest: what it finds stays, and is found a few steps later.
        self.steps += 1
        if self.steps % 5 == 0:
            self.verified()

    def verified(self) -> None:
        assert [check for check in self.client.verify() if check.violations] == []

    def teardown(self) -> None:
        # What a step has found must not be hidden by what is found after it.
        if not hasattr(self, "queue"):
            return
        try:
            if sys.exc_info()[1] is None:
                self.log_agrees()
                self.consume_all()
                self.little_is_left()
        finally:
            self.client.delete(self.queue)
        self.verified()

    def log_agrees(self) -> None:
        for partition in self.model.partitions.values():
            found = [(message.offset, content(message)) for message in self.client.read(self.queue, partition.name)]
            assert found == [(offset, partition.contents[offset]) for offset in range(partition.floor, partition.head)]

    def consume_all(self) -> None:
        """Give back what is held, and take everything: each message comes as often as was not said to be done."""
        self.answer()
        for batch, held in self.batches:
            batch.release()
            for claim in held:
                if self.model.holds(claim):
                    self.model.release(claim)
        self.batches.clear()
        for group in self.model.groups.values():
            while any(self.model.open_offsets(group, lane) for lane, _ in self.model.lanes(group)):
                self.pop(group, 100, 3)
                batch, held = self.batches.pop()
                batch.ack()
                for claim in held:
                    self.model.ack(claim)
            # What was purged or dropped has kept its ready list entry until somebody looks.
            self.pop(group, 100, 100)
        self.groups_agree()
        self.claims_agree()
        self.verified()

    def little_is_left(self) -> None:
        """Let all timers run out: then no table may have a row for what is done."""
        for _ in range(4):
            self.sql.execute("UPDATE penstock.journal SET due_at = due_at - interval '1 day' WHERE due_at > now()")
            assert self.client.sweep() is not None
        for name, group in self.model.groups.items():
            group_id = self.group_id(name)
            ((claims, places),) = self.sql.execute(
                "SELECT (SELECT count(*) FROM penstock.claims WHERE group_id = %s),"
                " (SELECT count(*) FROM penstock.ready WHERE group_id = %s)",
                (group_id, group_id),
            ).fetchall()
            assert (claims, places) == (0, 0), f"{group.mode} group"
            for partition, rows in self.sql.execute(
                "SELECT partition_id, count(*) FROM penstock.journal WHERE group_id = %s GROUP BY 1", (group_id,)
            ):
                assert rows <= JOURNAL_ROWS, f"{rows} rows for partition {partition} of a quiet {group.mode} group"
