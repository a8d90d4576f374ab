"""The property that every way in has, and the ways out by which it is checked."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psycopg

from penstock import Client, PenstockError

# What the engine documents: bad input, a broken rule, not found or there already, too large, not now, not allowed.
DOCUMENTED = ("22", "23", "40", "42", "54", "55")


@dataclass(frozen=True)
class Told:
    """A message as some way out tells of it."""

    key: str | None
    value: bytes | None
    headers: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, key: str | None, value: bytes | None, headers: Any) -> "Told":
        found = json.loads(headers) if isinstance(headers, str) else headers
        own = {name: text for name, text in (found or {}).items() if not name.startswith("penstock-")}
        return cls(key, None if value is None else bytes(value), tuple(sorted(own.items())))


class Penstock:
    """A penstock that is looked at from all sides."""

    def __init__(self, client: Client, sql: psycopg.Connection[Any]) -> None:
        self.client, self.sql = client, sql
        self.problems: list[str] = []

    def refused(self, what: str, act: Callable[[], object]) -> bool:
        """Do it: it is taken, or refused with an error of ours and without a trace."""
        before = self.everything()
        try:
            act()
        except PenstockError as error:
            self._unless(bool(str(error)), f"{what}: {type(error).__name__} says nothing")
        except Exception as error:
            self._unless(False, f"{what}: {type(error).__name__} is none of ours: {error!s:.200}")
        else:
            return False
        self._unless(self.everything() == before, f"{what}: refused, and something has changed")
        return True

    def refused_by_sql(self, what: str, statement: str, *parameters: Any) -> bool:
        """Run a statement: it is taken, or refused with a documented SQLSTATE and without a trace."""
        before = self.everything()
        try:
            self.sql.execute(statement.encode(), parameters)
        except UnicodeEncodeError:
            return True  # The driver could not even send it.
        except psycopg.Error as error:
            code = error.sqlstate
            self._unless(code is None or code.startswith(DOCUMENTED), f"{what}: {code} {error!s:.200}")
            self._unless(self.everything() == before, f"{what}: refused, and something has changed")
            return True
        return False

    def _unless(self, good: bool, problem: str) -> None:
        """Take note of a problem: all of them are told in the end."""
        if not good:
            self.problems.append(problem)

    def everything(self) -> list[Any]:
        """Return what there is, in numbers."""
        row = self.sql.execute(
            "SELECT (SELECT count(*) FROM penstock.queues), (SELECT count(*) FROM penstock.partitions),"
            " (SELECT count(*) FROM penstock.segments), (SELECT coalesce(sum(s.count), 0) FROM penstock.segments s),"
            " (SELECT count(*) FROM penstock.consumer_groups), (SELECT count(*) FROM penstock.dead_letters),"
            " (SELECT count(*) FROM penstock.claims),"
            # What is done of each partition: a sweep in the background changes other things of the journal.
            " ARRAY(SELECT max(j.committed) FROM penstock.journal j GROUP BY j.group_id, j.partition_id ORDER BY 1),"
            " (SELECT count(*) FROM penstock.scheduled), (SELECT count(*) FROM penstock.dedupe_ids),"
            " (SELECT count(*) FROM penstock.stages), (SELECT count(*) FROM penstock.cancellations),"
            " (SELECT count(*) FROM penstock.item_notes), (SELECT count(*) FROM penstock.item_steps),"
            " (SELECT count(*) FROM penstock.unique_keys),"
            " ARRAY(SELECT s.name || s.revision FROM penstock.schedules s ORDER BY 1)"
        ).fetchone()
        assert row is not None
        return list(row)

    def comes_back(self, what: str, queue: str, partition: str, expected: Told, group: str = "out") -> None:
        """See the newest message of a partition by every way out, in the end as a dead letter that is redriven."""
        client = self.client
        offset = client.partitions(queue, partition)[0].head - 1
        (read,) = client.read(queue, partition, offset)
        told = {
            "read": read,
            "get": client.get(read.id),
            "pop": self._popped(queue, partition, group, offset),
            "dead letter": self._dead(queue, partition, group, offset),
            "redrive": self._redriven(queue, group),
        }
        ways = {way: Told.of(one.key, one.value, one.headers) for way, one in told.items()}
        ways["the view"] = self._row(
            "SELECT key, payload, headers FROM penstock.messages"
            " WHERE queue_name = %s AND partition_name = %s AND message_offset = %s",
            queue,
            partition,
            offset,
        )
        ways["SQL read"] = self._row(
            "SELECT key, payload, headers FROM penstock.read(%s, %s, %s)", queue, partition, offset
        )
        ways["SQL get"] = self._row("SELECT key, payload, headers FROM penstock.get(%s)", read.id)
        (row,) = client.read_arrow(queue, partition, offset).to_pylist()
        ways["Arrow"] = Told.of(row["key"], row["value"], row["headers"])
        for way, found in ways.items():
            self._unless(found == expected, f"{what}, by {way}: {found!r:.200} and not {expected!r:.200}")

    def sound(self) -> None:
        """Fail if there was a problem, or if state and log disagree."""
        self.problems += [f"verify: {check}" for check in self.client.verify() if check.violations]
        assert not self.problems, "\n".join(self.problems)

    def _popped(self, queue: str, partition: str, group: str, offset: int) -> Any:
        self.client.seek(queue, group, offset, partition=partition)
        batch = self.client.pop(queue, group, partition=partition, max_messages=1)
        assert batch is not None
        batch.nack(reason="evil")
        return batch.messages[0]

    def _dead(self, queue: str, partition: str, group: str, offset: int) -> Any:
        (letter,) = self.client.dead_letters(queue, group)
        assert (letter.partition, letter.offset) == (partition, offset)
        return letter

    def _redriven(self, queue: str, group: str) -> Any:
        assert self.client.redrive(queue, group) == 1
        batch = self.client.pop(queue, group)
        assert batch is not None
        batch.ack()
        return batch.messages[0]

    def _row(self, statement: str, *parameters: Any) -> Told:
        (row,) = self.sql.execute(statement.encode(), parameters).fetchall()
        return Told.of(*row)
