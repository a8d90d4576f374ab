"""Does a pop cost the same at a hundred and at a million partitions?

Beside it run, on as many partitions, the two queries that a design with a cursor row per partition would need to find
work: the newest-message lookup joined to the cursors, and the count of messages behind them.
"""

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import msgspec
import psycopg

from penstock import Client
from penstock.errors import PenstockError

Say = Callable[[str], None]

# Each partition has one message; every group knows all of them.
_PARTITIONS = """
INSERT INTO penstock.partitions (queue_id, name)
SELECT q.queue_id, 'p' || i FROM penstock.queues q, generate_series(1, %s) i WHERE q.name = %s
"""
_SEGMENTS = """
INSERT INTO penstock.segments (partition_id, base_offset, created_at, count, bytes, body, ends)
SELECT p.partition_id, 0, clock_timestamp(), 1, 1, 'x', '\\x01000000'
FROM penstock.partitions p JOIN penstock.queues q ON q.queue_id = p.queue_id WHERE q.name = %s
"""
_RIVAL = """
CREATE SCHEMA rival;
CREATE TABLE rival.partitions (id bigint PRIMARY KEY, queue_name text NOT NULL, name text NOT NULL);
CREATE TABLE rival.messages (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(), partition_id bigint NOT NULL, created_at timestamptz NOT NULL
);
CREATE INDEX ON rival.messages (partition_id, created_at, id);
CREATE TABLE rival.partition_lookup (
    queue_name text NOT NULL, partition_id bigint NOT NULL, last_message_id uuid NOT NULL,
    last_message_created_at timestamptz NOT NULL, UNIQUE (queue_name, partition_id)
);
CREATE INDEX ON rival.partition_lookup (queue_name);
CREATE INDEX ON rival.partition_lookup (last_message_created_at DESC);
CREATE TABLE rival.partition_consumers (
    partition_id bigint NOT NULL, consumer_group text NOT NULL, last_consumed_id uuid,
    last_consumed_created_at timestamptz, last_consumed_at timestamptz, lease_expires_at timestamptz,
    UNIQUE (partition_id, consumer_group)
);
INSERT INTO rival.partitions SELECT i, 'q', 'p' || i FROM generate_series(1, %(count)s) i;
INSERT INTO rival.messages (partition_id, created_at)
SELECT i, now() - i * interval '1 millisecond' FROM generate_series(1, %(count)s) i;
INSERT INTO rival.partition_lookup SELECT 'q', m.partition_id, m.id, m.created_at FROM rival.messages m;
INSERT INTO rival.partition_consumers (partition_id, consumer_group, last_consumed_at)
SELECT i, 'g', now() - i * interval '1 second' FROM generate_series(1, %(count)s) i;
"""
LOOKUP = """
SELECT p.id, p.name
FROM rival.partition_lookup pl
JOIN rival.partitions p ON p.id = pl.partition_id
LEFT JOIN rival.partition_consumers pc ON pc.partition_id = pl.partition_id AND pc.consumer_group = 'g'
WHERE pl.queue_name = 'q'
  AND (pc.lease_expires_at IS NULL OR pc.lease_expires_at <= now())
  AND (pc.last_consumed_created_at IS NULL OR pl.last_message_created_at > pc.last_consumed_created_at
       OR (pl.last_message_created_at = pc.last_consumed_created_at AND pl.last_message_id > pc.last_consumed_id))
ORDER BY pc.last_consumed_at ASC NULLS FIRST, pl.last_message_created_at DESC
LIMIT 10
"""
COUNT = """
SELECT p.id, p.name, count(m.id) AS message_count
FROM rival.partitions p
LEFT JOIN rival.partition_consumers pc ON pc.partition_id = p.id AND pc.consumer_group = 'g'
LEFT JOIN rival.messages m ON m.partition_id = p.id
  AND (pc.last_consumed_created_at IS NULL OR (m.created_at, m.id) > (pc.last_consumed_created_at, pc.last_consumed_id))
WHERE p.queue_name = 'q' AND (pc.lease_expires_at IS NULL OR pc.lease_expires_at <= now())
GROUP BY p.id, p.name
HAVING count(m.id) > 0
ORDER BY count(m.id) DESC
LIMIT 10
"""
POP = """
SELECT y.ctid FROM penstock.ready y
WHERE y.group_id = (SELECT max(g.group_id) FROM penstock.consumer_groups g) AND y.priority = 0 AND y.seq >= 0
ORDER BY y.seq LIMIT 1 FOR UPDATE SKIP LOCKED
"""


class Scale(msgspec.Struct, frozen=True):
    """Milliseconds of a pop + ack at each number of partitions, and of the rivals' queries at the largest."""

    pop_ack_ms: dict[int, list[float]]
    lookup_ms: list[float]
    count_ms: list[float]
    plans: dict[str, str]

    @property
    def growth(self) -> float:
        """A pop + ack at the most partitions over one at the fewest."""
        sizes = sorted(self.pop_ack_ms)
        return median(self.pop_ack_ms[sizes[-1]]) / median(self.pop_ack_ms[sizes[0]])

    @property
    def rivals(self) -> dict[str, float]:
        """How many times longer each rival's query takes, at the most partitions."""
        ours = median(self.pop_ack_ms[max(self.pop_ack_ms)])
        return {"lookup": median(self.lookup_ms) / ours, "count": median(self.count_ms) / ours}


def measure(client: Client, sizes: tuple[int, ...], rounds: int, pops: int, say: Say) -> Scale:
    """Measure on queues of several sizes, in turns."""
    with psycopg.connect(client.dsn, autocommit=True) as connection:
        for size in sizes:
            say(f"making {size:,} partitions")
            _make(client, connection, size)
        say(f"making the rivals' tables of {max(sizes):,} partitions")
        # Parameters in several statements at once: only as text.
        connection.execute((_RIVAL % {"count": max(sizes)}).encode())
        connection.execute("VACUUM ANALYZE")
        times: dict[int, list[float]] = {size: [] for size in sizes}
        lookups: list[float] = []
        counts: list[float] = []
        for number in range(rounds):
            say(f"round {number + 1} of {rounds}")
            for size in sizes:
                times[size].append(_pop_and_ack(client, f"scale{size}", pops))
            lookups.append(_timed(connection, LOOKUP))
            counts.append(_timed(connection, COUNT))
        plans = {name: _plan(connection, query) for name, query in (("pop", POP), ("lookup", LOOKUP), ("count", COUNT))}
    return Scale(times, lookups, counts, plans)


def _make(client: Client, connection: psycopg.Connection[Any], size: int) -> None:
    queue = f"scale{size}"
    client.create(queue)
    connection.execute(_PARTITIONS, (size, queue))
    connection.execute(_SEGMENTS, (queue,))
    client.create_group(queue, "g")
    while _enrolling(connection, queue):
        client.sweep()


def _enrolling(connection: psycopg.Connection[Any], queue: str) -> bool:
    row = connection.execute(
        "SELECT g.enrolled_to IS NOT NULL FROM penstock.consumer_groups g "
        "JOIN penstock.queues q ON q.queue_id = g.queue_id WHERE q.name = %s",
        (queue,),
    ).fetchone()
    return bool(row and row[0])


def _pop_and_ack(client: Client, queue: str, pops: int) -> float:
    """Return the median of a pop and its ack, in milliseconds; what was taken is replaced, unmeasured."""
    times = []
    for _ in range(pops):
        began = time.perf_counter()
        batch = client.pop(queue, "g", max_messages=10)
        if batch is None:
            raise PenstockError(f"{queue} has nothing to give, and should have")
        batch.ack()
        times.append((time.perf_counter() - began) * 1000)
        client.push(queue, b"x", partition=batch.partition)
    return median(times)


def _timed(connection: psycopg.Connection[Any], query: str) -> float:
    began = time.perf_counter()
    connection.execute(query.encode()).fetchall()
    return (time.perf_counter() - began) * 1000


def _plan(connection: psycopg.Connection[Any], query: str) -> str:
    rows = connection.execute(f"EXPLAIN (ANALYZE, BUFFERS, COSTS OFF) {query}".encode()).fetchall()
    return "\n".join(row[0] for row in rows)
