"""The steps of a writer that stages and publishes, each one statement."""

import struct
from typing import Any

import psycopg

from databases import Connection

# Of SQLSTATE 55PS1, which psycopg has no class for.
CheckpointRefused = psycopg.OperationalError
PUBLISH = "SELECT outcome, messages FROM penstock.publish_stages(%s, %s, %s, %s, %s)"


def stage(
    sql: Connection,
    values: dict[str, list[str]],
    *,
    epoch: int = 0,
    run: str = "run-1",
    writer: str = "query",
    queue: str = "q",
) -> int:
    """Stage messages for some partitions of a queue; return the stage."""
    ((number,),) = sql.execute("SELECT penstock.begin_stage(%s, %s, %s)", (writer, run, epoch)).fetchall()
    if values:
        add(sql, number, 0, values, queue)
    return int(number)


def add(sql: Connection, number: int, first: int, values: dict[str, list[str]], queue: str = "q") -> None:
    """Write one segment for each partition to a stage."""
    packed = [[value.encode() for value in messages] for messages in values.values()]
    sql.execute(
        "SELECT penstock.stage_segments(%s::bigint, %s::bigint, %s::text[], %s::text[], %s::integer[], %s::bytea,"
        " %s::bytea)",
        (
            number,
            first,
            [queue] * len(values),
            list(values),
            [len(messages) for messages in packed],
            b"".join(message for messages in packed for message in messages),
            b"".join(map(_ends, packed)),
        ),
    )


def publish(
    sql: Connection, stages: dict[int, int], *, epoch: int = 0, run: str = "run-1", writer: str = "query"
) -> tuple[str, int]:
    """Publish stages, each with how many messages it has."""
    ((outcome, messages),) = sql.execute(
        PUBLISH.encode(), (writer, run, epoch, list(stages), list(stages.values()))
    ).fetchall()
    return outcome, messages


def note(sql: Connection, snapshot: int, *, epoch: int = 0, run: str = "run-1", writer: str = "query") -> None:
    """Say which snapshot an epoch reads."""
    sql.execute("SELECT penstock.note_epoch(%s, %s, %s, %s)", (writer, run, epoch, snapshot))


def read(sql: Connection, partition: str = "p", queue: str = "q") -> list[str]:
    """Return what a reader sees."""
    rows = sql.execute("SELECT convert_from(payload, 'UTF8') FROM penstock.read(%s, %s)", (queue, partition)).fetchall()
    return [value for (value,) in rows]


def value(sql: Connection, query: str, *parameters: Any) -> Any:
    """Return the first column of the first row."""
    return sql.execute(query.encode(), parameters or None).fetchall()[0][0]


def staged_segments(sql: Connection) -> int:
    """Return how many segments lie under negative ids."""
    return int(value(sql, "SELECT count(*) FROM penstock.segments WHERE partition_id < 0"))


def _ends(messages: list[bytes]) -> bytes:
    total, ends = 0, []
    for message in messages:
        total += len(message)
        ends.append(total)
    return struct.pack(f"<{len(ends)}i", *ends)
