"""A clock for schedules that a test sets, forwards and back."""

from datetime import UTC, datetime, timedelta

from databases import Connection, Connections


class Clock:
    """The time by which schedules of one database are judged."""

    def __init__(self, connections: Connections) -> None:
        self.dsn = connections.dsn
        self.sql: Connection = connections.open(autocommit=True)
        self.sql.execute("CREATE TABLE clock (now timestamptz NOT NULL)")
        self.sql.execute("INSERT INTO clock VALUES ('2026-11-17 09:00:30Z')")
        self.sql.execute(
            "CREATE OR REPLACE FUNCTION penstock.policy_clock() RETURNS timestamptz LANGUAGE sql VOLATILE"
            " AS 'SELECT now FROM public.clock'"
        )

    def set(self, time: str) -> None:
        """Set the time, in UTC."""
        self.sql.execute("UPDATE clock SET now = %s", (utc(time),))

    def advance(self, by: timedelta) -> None:
        """Let time pass, or go back."""
        self.sql.execute("UPDATE clock SET now = now + %s", (by,))


def utc(time: str) -> datetime:
    """Return a time in UTC."""
    return datetime.fromisoformat(time).replace(tzinfo=UTC)


def slots(connection: Connection, queue: str = "q") -> list[datetime]:
    """Return the slots of all messages that schedules pushed to a queue, in the order of the log."""
    rows = connection.execute(
        "SELECT headers ->> 'penstock-slot' FROM penstock.messages WHERE queue_name = %s"
        " ORDER BY partition_name, message_offset",
        (queue,),
    ).fetchall()
    return [datetime.fromisoformat(slot) for (slot,) in rows]
