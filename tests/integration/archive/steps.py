"""A run of `penstock archive` as plain SQL, without its files."""

from databases import Connection


def push(sql: Connection, count: int = 1, partition: str = "p", queue: str = "q") -> None:
    """Push messages, a segment each."""
    for _ in range(count):
        sql.execute("SELECT penstock.push(%s, ARRAY['x']::bytea[], %s)", (queue, partition))


def begin(sql: Connection, queue: str = "q") -> str:
    """Begin a run."""
    return str(sql.execute("SELECT run FROM penstock.begin_archive(%s, '/somewhere')", (queue,)).fetchall()[0][0])


def record(sql: Connection, run: str, *ranges: tuple[int, int], partition: str = "p", queue: str = "q") -> int:
    """Record ranges of a partition, all in one file."""
    many = len(ranges)
    ((number,),) = sql.execute("SELECT penstock.find_partition(%s, %s)", (queue, partition)).fetchall()
    ((messages,),) = sql.execute(
        "SELECT penstock.record_archive(%s, ARRAY['a.parquet'], ARRAY[10]::bigint[], ARRAY['sum'], %s::bigint[],"
        " %s::bigint[], %s::bigint[], %s::integer[], %s::integer[], %s::bigint[], %s::bigint[], %s, %s)",
        (
            run,
            [number] * many,
            [start for start, _ in ranges],
            [stop for _, stop in ranges],
            *([one] * many for one in (1, 0, 0, 100)),
            *sql.execute(
                "SELECT array_fill(clock_timestamp(), ARRAY[%s]), array_fill(clock_timestamp(), ARRAY[%s])",
                (many, many),
            ).fetchall()[0],
        ),
    ).fetchall()
    return int(messages)


def archived_to(sql: Connection, partition: str = "p", queue: str = "q") -> int:
    """Return how far a partition is archived."""
    return int(
        sql.execute("SELECT penstock.archived_to(penstock.find_partition(%s, %s))", (queue, partition)).fetchall()[0][0]
    )
