"""The log itself: transactions, concurrent pushes, time travel, merging."""

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from uuid import UUID

from psycopg.sql import SQL

from penstock.demo.stage import Stage

PRODUCERS = 4
CUSTOMERS = 20
BATCHES = 50
BATCH = 100
SINGLES = 200


class Log:
    """The part of the demo without consumers, and what it measured."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.client = stage.client
        self.echo = stage.echo
        self.check = stage.check
        self.push_rate = self.read_rate = 0.0

    def run(self) -> None:
        """Show everything; a count that is wrong raises."""
        self.transactions()
        self.concurrent_pushes()
        self.time_travel()
        self.merging()
        self.summary()

    def transactions(self) -> None:
        """Push in the same transaction as a row of the user's own table."""
        self.echo("1. An order and its message, in one transaction")
        insert = SQL("INSERT INTO {} VALUES (%s, %s)").format(self.stage.table)
        with self.client.transaction() as tx:
            tx.connection.execute(SQL("CREATE TABLE {} (id integer PRIMARY KEY, item text)").format(self.stage.table))
        with self.client.transaction() as tx:
            tx.connection.execute(insert, (1, "kettle"))
            tx.push(self.stage.orders, {"order": 1, "item": "kettle"}, partition="shop")
        self.check("committed: rows, messages", self.rows_and_messages(), (1, 1))
        with suppress(Unwanted), self.client.transaction() as tx:
            tx.connection.execute(insert, (2, "teapot"))
            tx.push(self.stage.orders, {"order": 2, "item": "teapot"}, partition="shop")
            raise Unwanted
        self.check("rolled back: rows, messages", self.rows_and_messages(), (1, 1))

    def concurrent_pushes(self) -> None:
        """Push from several threads at once, and read everything back."""
        self.echo(f"2. {PRODUCERS} producers at once, a partition per customer")
        begun = time.perf_counter()
        with ThreadPoolExecutor(PRODUCERS) as pool:
            list(pool.map(self.produce, range(PRODUCERS)))
        self.push_rate = PRODUCERS * BATCHES * BATCH / (time.perf_counter() - begun)
        begun = time.perf_counter()
        read = {
            info.name: self.client.read(self.stage.events, info.name)
            for info in self.client.partitions(self.stage.events)
        }
        self.read_rate = sum(map(len, read.values())) / (time.perf_counter() - begun)
        self.check("partitions", len(read), CUSTOMERS)
        gaps = sum([message.offset for message in messages] != list(range(len(messages))) for messages in read.values())
        self.check("partitions with a gap in their offsets", gaps, 0)
        pushed = [
            number for producer in range(PRODUCERS) for batch in range(BATCHES) for number in numbers(producer, batch)
        ]
        self.check("messages, each once", sorted(m.json() for found in read.values() for m in found), sorted(pushed))

    def produce(self, producer: int) -> None:
        """Push batches of numbers that only this producer has."""
        for batch in range(BATCHES):
            self.client.push(
                self.stage.events, numbers(producer, batch), partition=f"customer-{(producer + batch) % CUSTOMERS}"
            )

    def time_travel(self) -> None:
        """Read by time and by id."""
        self.echo("3. Time travel")
        before = self.client.push(self.stage.clicks, ["before"], partition="page")
        # The server's clock decides, and a time between two pushes is one of its times.
        moment = self.client.push(self.stage.clicks, ["at noon"], partition="page").timestamp
        self.client.push(self.stage.clicks, ["after"], partition="page")
        since = self.client.read(self.stage.clicks, "page", start_time=moment)
        self.check("read since a moment", [message.json() for message in since], ["at noon", "after"])
        until = self.client.read(self.stage.clicks, "page", stop_time=moment)
        self.check("read until then", [message.json() for message in until], ["before"])
        self.check("get by id", self.client.get(before.ids[0]).json(), "before")

    def merging(self) -> None:
        """Merge small segments; what was pushed keeps its id."""
        self.echo(f"4. {SINGLES} messages pushed one at a time become few segments")
        ids = {
            self.client.push(self.stage.clicks, number, partition="single").ids[0]: number for number in range(SINGLES)
        }
        merged = sum(part.merged_segments for part in self.client.maintain(min_segments=2))
        self.echo(f"   segments merged: {merged}")
        self.check("messages under their old ids", self.by_id("single"), ids)
        self.check("one of them, by its id", self.client.get(next(iter(ids))).json(), 0)

    def summary(self) -> None:
        """Count everything once more and print the result."""
        queues = (self.stage.orders, self.stage.events, self.stage.clicks)
        infos = [(queue, info) for queue in queues for info in self.client.partitions(queue)]
        read = sum(len(self.client.read(queue, info.name)) for queue, info in infos)
        pushed = 1 + PRODUCERS * BATCHES * BATCH + 3 + SINGLES
        self.echo("5. The log, all in all")
        self.check("messages read, of those pushed", read, pushed)
        self.check("heads of all partitions, added up", sum(info.head for _, info in infos), pushed)
        for name, value in (
            ("pushed", f"{pushed:,}"),
            ("read", f"{read:,}"),
            ("partitions", f"{len(infos):,}"),
            ("gaps", "0"),
            ("pushed per second", f"{self.push_rate:,.0f}"),
            ("read per second", f"{self.read_rate:,.0f}"),
        ):
            self.echo(f"   {name:<18}{value:>10}")

    def rows_and_messages(self) -> tuple[int, int]:
        """Count the rows of the table and the messages beside them."""
        with self.client.transaction() as tx:
            rows = tx.connection.execute(SQL("SELECT id FROM {}").format(self.stage.table)).fetchall()
        return len(rows), len(self.client.read(self.stage.orders, "shop"))

    def by_id(self, partition: str) -> dict[UUID, object]:
        """Read a partition of clicks."""
        return {message.id: message.json() for message in self.client.read(self.stage.clicks, partition)}


class Unwanted(Exception):
    """What makes the demo's transaction roll back."""


def numbers(producer: int, batch: int) -> list[int]:
    """Return the numbers that a producer pushes in a batch; no other batch has them."""
    first = (producer * BATCHES + batch) * BATCH
    return list(range(first, first + BATCH))
