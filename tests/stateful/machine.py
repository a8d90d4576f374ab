"""What all rules share: a queue under a random name, its groups and partitions, and the batches that are open."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import psycopg
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize

from penstock import Batch, Client, LeaseLost

from .model import Content, Group, Held, Model
from .texts import NAMES, TEXT

# Chosen before it is known what there is to choose from: what a pop finds may differ from run to run.
PICKS = st.integers(0, 1000)
PARTITIONS = st.integers(0, 2)
KINDS = {
    "ordered": ("ordered", 2),
    "patient": ("ordered", 5),
    "shared": ("shared", 2),
    "patient shared": ("shared", 5),
    "of new messages": ("ordered", 2),
}
GROUPS = st.sampled_from(list(KINDS))
queue_numbers = count()


class Machine(RuleBasedStateMachine):
    """A queue with ordered and shared groups, of few and of many attempts, and one that wants what is new."""

    client: Client
    # For what a client does not do: bring timers forward, look into tables.
    sql: psycopg.Connection[Any]

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.batches: list[tuple[Batch, list[Held]]] = []
        # What waits for its time, by id, and the offsets of the messages that have a dedupe id.
        self.later: dict[int, tuple[str, list[Any]]] = {}
        self.seen: dict[tuple[str, str], int] = {}
        # Whether somebody pushed above READ COMMITTED, and no sweep has told the groups yet.
        self.unanswered = False

    @initialize(
        suffix=NAMES,
        partitions=st.lists(NAMES, min_size=3, max_size=3, unique=True),
        dedupe_ids=st.lists(TEXT.filter(bool), min_size=3, max_size=3, unique=True),
    )
    def begin(self, suffix: str, partitions: list[str], dedupe_ids: list[str]) -> None:
        self.queue = f"{next(queue_numbers)}{suffix}"
        self.suffix, self.names, self.dedupe_ids = suffix, partitions, dedupe_ids
        self.client.create(self.queue, backoff_initial=0, dedupe_window=3600)
        for kind, (mode, max_attempts) in KINDS.items():
            self.new_group(kind, mode, max_attempts, "new" if kind == "of new messages" else "all")
        # Something to begin with: a life is short.
        contents = [Content(b"%d" % number) for number in range(6)]
        self.client.push(self.queue, [content.value for content in contents], partition=partitions[0])
        self.model.push(partitions[0], contents)

    def new_group(self, kind: str, mode: str, max_attempts: int, subscription: str = "all") -> None:
        name = kind + self.suffix
        self.client.create_group(self.queue, name, mode=mode, max_attempts=max_attempts, subscription=subscription)
        self.model.add_group(Group(name, mode, max_attempts), only_new=subscription == "new")

    def group(self, kind: str) -> Group:
        return self.model.groups[kind + self.suffix]

    def answer(self) -> None:
        """Let the groups know of all that was pushed."""
        if self.unanswered:
            assert self.client.sweep() is not None
            self.unanswered = False

    # Open batches

    def choose(self, pick: int) -> tuple[Batch, list[Held], bool] | None:
        """Take a batch that was not settled, what it holds, and whether all of its leases are live."""
        self.answer()
        if not self.batches:
            return None
        batch, held = self.batches.pop(pick % len(self.batches))
        return batch, held, all(self.model.holds(claim) for claim in held)

    def keep(self, batch: Batch, held: list[Held]) -> None:
        if not batch.settled:
            self.batches.append((batch, held))

    @staticmethod
    def settle(how: Callable[[], object], live: bool) -> None:
        """Do it; where a lease is gone it must say so."""
        if live:
            how()
        else:
            with pytest.raises(LeaseLost):
                how()

    # Looking into tables

    def rows_of(self, table: str) -> int:
        """Count the rows that a table has for the groups of this queue."""
        statements = {
            "ranges": "SELECT count(*) FROM penstock.ready y WHERE y.lo IS NOT NULL AND y.group_id = ANY (%s)",
            "claims": "SELECT count(*) FROM penstock.claims c WHERE c.group_id = ANY (%s)",
        }
        (count,) = self.one(statements[table], [self.group_id(name) for name in self.model.groups])
        return int(count)

    @contextmanager
    def adding_rows(self, most: int) -> Iterator[None]:
        """See to it that the body leaves at most so many more rows of shared ranges, whatever their size."""
        before = self.rows_of("ranges") + self.rows_of("claims")
        yield
        added = self.rows_of("ranges") + self.rows_of("claims") - before
        assert added <= most, f"{added} more rows of ranges; {most} are enough"

    def group_id(self, name: str) -> int:
        statement = (
            "SELECT g.group_id FROM penstock.consumer_groups g JOIN penstock.queues q USING (queue_id)"
            " WHERE q.name = %s AND g.name = %s"
        )
        return int(self.one(statement, self.queue, name)[0])

    def one(self, statement: str, *parameters: Any) -> tuple[Any, ...]:
        row = self.sql.execute(statement.encode(), parameters).fetchone()
        assert row is not None
        return tuple(row)


def has_batches(machine: Any) -> bool:
    """Tell whether there is something to settle."""
    return bool(machine.batches)


def has_letters(machine: Any) -> bool:
    """Tell whether there are dead letters."""
    return any(group.letters for group in machine.model.groups.values())
