"""Rules of pushing: plain, to many partitions, once, repeated, later, and above READ COMMITTED."""

from uuid import uuid4

import psycopg
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from penstock import InvalidInput, Message

from .machine import PARTITIONS, PICKS, Machine
from .model import Content
from .texts import ANY_TEXT, CONTENTS, VALUES, message

ISOLATION = st.sampled_from([psycopg.IsolationLevel.REPEATABLE_READ, psycopg.IsolationLevel.SERIALIZABLE])


class Pushing(Machine):
    """Whatever is pushed gets the next offsets, and comes back as it was."""

    @rule(partition=PARTITIONS, contents=st.lists(CONTENTS, min_size=1, max_size=5))
    def push(self, partition: int, contents: list[Content]) -> None:
        name = self.names[partition]
        result = self.client.push(self.queue, [message(content) for content in contents], partition=name)
        assert result.first_offset == self.model.push(name, contents)

    @rule(partition=PARTITIONS, size=st.integers(20, 60))
    def push_a_lot(self, partition: int, size: int) -> None:
        name = self.names[partition]
        contents = [Content(b"%d" % number) for number in range(size)]
        result = self.client.push(self.queue, [content.value for content in contents], partition=name)
        assert result.first_offset == self.model.push(name, contents)

    @rule(pairs=st.lists(st.tuples(PARTITIONS, CONTENTS), min_size=1, max_size=6))
    def push_many(self, pairs: list[tuple[int, Content]]) -> None:
        given = [message(content, partition=self.names[place]) for place, content in pairs]
        self.client.push_many(self.queue, given)
        for place, content in pairs:
            self.model.push(self.names[place], [content])

    @rule(partition=PARTITIONS, value=VALUES, key=st.none() | ANY_TEXT, headers=st.dictionaries(ANY_TEXT, ANY_TEXT))
    def push_anything(self, partition: int, value: bytes | None, key: str | None, headers: dict[str, str]) -> None:
        name = self.names[partition]
        pushed = Message(value, key, headers or None)
        texts = [*headers, *headers.values(), *([] if key is None else [key])]
        if key == "" or any(not storable(text) for text in texts):
            with pytest.raises(InvalidInput):
                self.client.push(self.queue, pushed, partition=name)
            return
        self.client.push(self.queue, pushed, partition=name)
        self.model.push(name, [Content(value, key, tuple(sorted(headers.items())))])

    @rule(partition=PARTITIONS, given=st.lists(st.tuples(PARTITIONS, CONTENTS), min_size=1, max_size=4))
    def push_once(self, partition: int, given: list[tuple[int, Content]]) -> None:
        self.answer()
        name = self.names[partition]
        ids = [self.dedupe_ids[number] for number, _ in given]
        fresh = [place for place, each in enumerate(ids) if (name, each) not in self.seen and each not in ids[:place]]
        pushed = [message(content, dedupe_id=each) for each, (_, content) in zip(ids, given, strict=True)]
        result = self.client.push(self.queue, pushed, partition=name)
        self.model.add_partition(name)
        assert result.count == len(fresh)
        if fresh:
            first = self.model.push(name, [given[place][1] for place in fresh])
            assert result.first_offset == first
            self.seen.update({(name, ids[place]): first + nth for nth, place in enumerate(fresh)})
        assert [(each.position, each.offset) for each in result.duplicates] == [
            (place, self.seen[name, each]) for place, each in enumerate(ids) if place not in fresh
        ]

    @rule(partition=PARTITIONS, value=st.binary(max_size=12), again=st.integers(1, 2))
    def push_repeatedly(self, partition: int, value: bytes, again: int) -> None:
        """Send one push several times, as a client does whose answer was lost."""
        name, producer = self.names[partition], uuid4()
        statement = (
            "SELECT first_offset FROM penstock.push_segments(ARRAY[%s], ARRAY[%s], ARRAY[1], ARRAY[%s::bytea],"
            " ARRAY[%s::bytea], producer => %s, sequence => 1)"
        )
        packed = (value, len(value).to_bytes(4, "little"))
        answers = {self.one(statement, self.queue, name, *packed, producer) for _ in range(1 + again)}
        assert answers == {(self.model.push(name, [Content(value)]),)}

    @rule(
        partition=PARTITIONS,
        contents=st.lists(CONTENTS, min_size=1, max_size=3),
        level=ISOLATION,
        overtaken=st.booleans(),
    )
    def push_isolated(
        self, partition: int, contents: list[Content], level: psycopg.IsolationLevel, overtaken: bool
    ) -> None:
        """Push from a transaction that cannot see the groups: a sweep tells them, maybe after the next push."""
        name = self.names[partition]
        with psycopg.connect(self.client.dsn) as connection:
            connection.isolation_level = level
            with self.client.transaction(connection) as tx:
                tx.push(self.queue, [message(content) for content in contents], partition=name)
            connection.commit()
        self.model.push(name, contents)
        self.unanswered = True
        if overtaken:
            self.push(partition, contents)

    @rule(partition=PARTITIONS, contents=st.lists(CONTENTS, min_size=1, max_size=3))
    def push_for_later(self, partition: int, contents: list[Content]) -> None:
        name = self.names[partition]
        pushed = [message(content) for content in contents]
        scheduled = self.client.push(self.queue, pushed, partition=name, delay=3600).scheduled
        assert scheduled is not None
        self.model.add_partition(name)
        self.later[scheduled.ids[0]] = (name, contents)

    @precondition(lambda machine: machine.later)
    @rule(pick=PICKS, cancelled=st.booleans())
    def come_due(self, pick: int, cancelled: bool) -> None:
        self.answer()
        chosen = list(self.later)[pick % len(self.later)]
        name, contents = self.later.pop(chosen)
        if cancelled:
            assert self.client.cancel(chosen) == [chosen]
            return
        self.sql.execute("UPDATE penstock.scheduled SET due_at = now() WHERE scheduled_id = %s", (chosen,))
        self.client.sweep()
        self.model.push(name, contents)


def storable(text: str) -> bool:
    return "\0" not in text and not any("\ud800" <= character <= "\udfff" for character in text)
