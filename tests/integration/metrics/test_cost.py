"""Health and metrics write less than a hundredth of what the work writes that they describe."""

import pytest

from databases import Connection
from penstock import Client
from penstock.consuming import reporting


def wal(sql: Connection) -> int:
    [(position,)] = sql.execute("SELECT pg_current_wal_insert_lsn() - '0/0'").fetchall()
    return int(position)


def work(client: Client, messages: int) -> None:
    """Push and consume so many messages, ten at a time."""
    for number in range(messages // 10):
        client.push("orders", [b"x" * 200] * 10, partition=f"p{number % 20}")
    client.process("orders", lambda message: None, group="billing", idle_timeout=0, handle_signals=False)


@pytest.mark.parametrize("rate", [10, 1000])
def test_reports_are_a_hundredth_of_the_wal_at_any_rate(client: Client, dsn: str, sql: Connection, rate: int) -> None:
    with Client(dsn, metrics=False) as worker:
        work(worker, 200)
        # Without pages that are written whole after a checkpoint, which either may meet.
        sql.execute("CHECKPOINT")
        work(worker, 2000)
        before = wal(sql)
        work(worker, 10_000)
        plain = wal(sql) - before
    seconds = 10_000 / rate

    def describe() -> int:
        # What a client writes of itself within that time: driven by hand, by a clock that shows it.
        now = [0.0]
        reports = reporting.Reports(lambda: now[0])
        tally = reports.enter("orders", "billing")
        with Client(dsn, metrics=False) as reporter:

            def tick() -> None:
                if (report := reports.report("me")) is not None:
                    reports.reported(report, reporter._transport.run(report))
                if (record := reports.metrics()) is not None:
                    reporter._transport.run(record)
                    reports.recorded(record)

            tick()
            before = wal(sql)
            ticks = max(1, round(seconds / reporting.TICK))
            for _ in range(ticks):
                now[0] += seconds / ticks
                for _ in range(max(1, 1000 // ticks)):
                    reports.pushed("orders", 10_000 // ticks // max(1, 1000 // ticks))
                    tally.took(10, 0.01)
                    tally.handled(10, 0.001)
                tick()
                reporter.sample()
            return wal(sql) - before

    # What the server does by itself meanwhile, such as to vacuum, only adds to it.
    described = min(describe() for _ in range(3))
    print(f"{rate} messages a second: {described} of {plain} bytes, {described / plain:.2%}")  # noqa: T201
    assert described <= 0.01 * plain
