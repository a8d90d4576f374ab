"""A clock that a test sets, also back: policy_clock is replaced in a database whose functions may be changed."""

from datetime import UTC, datetime, timedelta

from databases import Connection

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)


class Clock:
    """The time that breakers, health and limits go by."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        connection.execute("CREATE TABLE public.test_clock (at timestamptz NOT NULL)")
        connection.execute("INSERT INTO public.test_clock VALUES (%s)", (NOON,))
        connection.execute(
            "CREATE OR REPLACE FUNCTION penstock.policy_clock() RETURNS timestamptz LANGUAGE sql VOLATILE"
            " AS 'SELECT at FROM public.test_clock'"
        )
        self.now = NOON

    def set(self, moment: datetime) -> None:
        """Set it to a moment."""
        self.now = moment
        self._connection.execute("UPDATE public.test_clock SET at = %s", (moment,))

    def pass_by(self, seconds: float) -> None:
        """Let so many seconds pass; fewer than none set it back."""
        self.set(self.now + timedelta(seconds=seconds))
