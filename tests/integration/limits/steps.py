"""What tests of limits share: a clock that they set, and a look at what waits."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from databases import Connection
from penstock import sql as source

FUNCTIONS = source.functions()


class Clock:
    """The time by which limits and holds go, in seconds since some moment; it stands still, and may be set back."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        connection.execute("CREATE TABLE public.test_clock (seconds float8 NOT NULL)")
        connection.execute("INSERT INTO public.test_clock VALUES (0)")
        connection.execute(
            "CREATE OR REPLACE FUNCTION penstock.policy_clock() RETURNS timestamptz LANGUAGE sql VOLATILE AS $$SELECT"
            " timestamptz '2030-01-01 00:00:00+00' + make_interval(secs => c.seconds) FROM public.test_clock c$$"
        )

    def set(self, seconds: float) -> None:
        """Set it. The sweep looks at all that waits for time to pass, and decides by this clock."""
        self._connection.execute("UPDATE public.test_clock SET seconds = %s", (seconds,))
        self._connection.execute(
            "UPDATE penstock.limited_keys SET look_at = clock_timestamp() WHERE look_at IS NOT NULL"
        )

    def put_back(self) -> None:
        """Let the function be as it was."""
        self._connection.execute(FUNCTIONS["policy_clock"].text.encode())
        self._connection.execute("DROP TABLE public.test_clock")


def group_id(connection: Connection, group: str = "g") -> int:
    """Return the id of a group."""
    return int(one(connection, "SELECT group_id FROM penstock.consumer_groups WHERE name = %s", group))


def hold(connection: Connection, seconds: float, *, probing: bool, group: str = "g") -> None:
    """Hold a group for so long."""
    connection.execute(
        "SELECT penstock.hold_group(%s, penstock.policy_clock() + make_interval(secs => %s), %s)",
        (group_id(connection, group), seconds, probing),
    )


def unhold(connection: Connection, group: str = "g") -> bool:
    """End the hold of a group."""
    return bool(one(connection, "SELECT penstock.unhold_group(%s)", group_id(connection, group)))


def is_pending(connection: Connection, group: str = "g") -> bool:
    """Say whether a pop could find something."""
    return bool(one(connection, "SELECT penstock.has_pending_messages('q', NULL, %s)", group))


def configure(connection: Connection, settings: str, group: str = "g") -> None:
    """Change settings of a group, given as JSON."""
    connection.execute("SELECT penstock.configure_group('q', %s, %s::jsonb)", (group, settings))


def push_keys(connection: Connection, partition: str, keys: str) -> None:
    """Push a message for each of some keys of one letter."""
    connection.execute(
        "SELECT penstock.push('q', array_fill('x'::bytea, ARRAY[length(%s)]), %s, string_to_array(%s, NULL))",
        (keys, partition, keys),
    )


@contextmanager
def writing_nothing(connection: Connection) -> Iterator[None]:
    """Check that the body changes no row: its transaction gets no id."""
    with connection.transaction():
        yield
        assert one(connection, "SELECT pg_current_xact_id_if_assigned()") is None


def one(connection: Connection, query: str, *parameters: Any) -> Any:
    """Return the one value that a query has."""
    ((value,),) = connection.execute(query.encode(), parameters or None).fetchall()
    return value
