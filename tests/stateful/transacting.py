"""Rules of transactions: pushes, pops and acknowledgements that commit or roll back with savepoints."""

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import rule

from penstock import Batch

from .claiming import Claiming
from .machine import GROUPS, PARTITIONS, PICKS
from .model import Content, Held
from .texts import CONTENTS, Trouble, message

ACTIONS = st.one_of(
    st.tuples(st.just("push"), PARTITIONS, CONTENTS),
    st.tuples(st.just("push"), PARTITIONS, CONTENTS),
    st.tuples(st.just("ack"), PICKS),
    st.tuples(st.just("pop"), GROUPS),
)
# What is done in a transaction, and within savepoints in it, each of which is rolled back or not.
Step = tuple[Any, ...]
SAVEPOINTS: st.SearchStrategy[Step] = st.deferred(lambda: st.tuples(st.just("savepoint"), STEPS, st.booleans()))
STEPS: st.SearchStrategy[list[Step]] = st.lists(ACTIONS | SAVEPOINTS, min_size=1, max_size=3)


Batches = list[tuple[Batch, list[Held]]]


@dataclass
class Level:
    """A transaction or savepoint, and what happened in it so far."""

    pushed: list[tuple[str, Content]] = field(default_factory=list)
    acked: Batches = field(default_factory=list)
    popped: list[tuple[str, Batch]] = field(default_factory=list)


class Transacting(Claiming):
    """What a savepoint takes back did not happen, and what is left of a transaction happened at its end."""

    @rule(steps=STEPS, commits=st.sampled_from([True, True, True, False]))
    def transact(self, steps: list[Step], commits: bool) -> None:
        self.answer()
        undone: Batches = []
        level = Level()
        try:
            with self.client.transaction() as tx:
                self.take(steps, tx, level, undone)
                if not commits:
                    raise Trouble
        except Trouble:
            undone += level.acked
            level = Level()
        for batch, held in level.acked:
            assert batch.settled
            for claim in held:
                self.model.ack(claim)
        for kind, batch in level.popped:
            self.took(self.group(kind), batch, 3)
        # Pushes are written at the end of the block: no pop within it gets them.
        for name, content in level.pushed:
            self.model.push(name, [content])
        for batch, held in undone:
            assert not batch.settled, "the acknowledgement was rolled back"
            self.keep(batch, held)

    def take(self, steps: list[Step], tx: Any, level: Level, undone: Batches) -> None:
        """Do the steps on one level, and those within on levels of their own."""
        for step in steps:
            match step:
                case ("push", place, content):
                    tx.push(self.queue, message(content), partition=self.names[place])
                    level.pushed.append((self.names[place], content))
                case ("ack", pick) if (chosen := self.choose(pick)) is not None:
                    batch, held, live = chosen
                    if live:
                        tx.ack(batch)
                        level.acked.append((batch, held))
                    else:
                        self.keep(batch, held)
                case ("pop", kind) if batch := tx.pop(self.queue, self.group(kind).name, max_messages=3):
                    level.popped.append((kind, batch))
                case ("savepoint", inner, rolled_back):
                    within = Level()
                    with suppress(Trouble), tx.connection.transaction():
                        self.take(inner, tx, within, undone)
                        if rolled_back:
                            raise Trouble
                    if rolled_back:
                        undone += within.acked
                    else:
                        level.pushed += within.pushed
                        level.acked += within.acked
                        level.popped += within.popped
