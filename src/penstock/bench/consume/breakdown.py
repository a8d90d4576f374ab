"""Where the time of one take and its ack goes: the driver, the server's functions, and the wait for the disk.

One process takes single messages of eight partitions. Each call is timed as the application sees it, with commits that
wait for the disk and with commits that do not; what is left is compared with a statement that does nothing.
"""

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import msgspec
import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from penstock import Client
from penstock.bench.consume.worker import MESSAGE, WARM_UP

_PARTITIONS = 8
_PATIENCE = 10.0
_FUNCTIONS = """
SELECT f.funcname, f.calls, f.total_time, f.self_time FROM pg_stat_user_functions f WHERE f.schemaname = 'penstock'
"""


class Function(msgspec.Struct, frozen=True):
    """What one function of the server takes: how often it is called for one message, and microseconds a call."""

    name: str
    calls: float
    total_us: float
    self_us: float


class Breakdown(msgspec.Struct, frozen=True):
    """Microseconds of one call, the median of many."""

    nothing_us: float
    write_us: float
    write_unflushed_us: float
    pop_us: float
    pop_unflushed_us: float
    ack_us: float
    ack_unflushed_us: float
    # Those that take longest first; none where the role may not count them.
    functions: list[Function]

    @property
    def flush_us(self) -> float:
        """What a commit waits for the disk."""
        return self.write_us - self.write_unflushed_us


def measure(url: str, calls: int) -> Breakdown:
    """Time some hundred takes of single messages, the two kinds of commit in turns."""
    relaxed = with_options(url, "-c synchronous_commit=off")
    timed: dict[str, list[float]] = {}
    with Client(url) as durable, Client(relaxed) as unflushed:
        _fill(unflushed, 2 * (calls + WARM_UP))
        for name, seconds in _statements(url, calls).items():
            timed[name] = seconds
        for number in range(calls + WARM_UP):
            for name, client in (("", durable), ("_unflushed", unflushed)):
                pop, ack = _take(client)
                if number >= WARM_UP:
                    timed.setdefault(f"pop{name}", []).append(pop)
                    timed.setdefault(f"ack{name}", []).append(ack)
        durable.delete_group("breakdown", "g")
        functions = _functions(url, relaxed, calls)
        durable.delete("breakdown")
    return Breakdown(**{f"{name}_us": median(seconds) * 1e6 for name, seconds in timed.items()}, functions=functions)


def with_options(url: str, options: str) -> str:
    """Return an address whose sessions begin with more options."""
    old = conninfo_to_dict(url).get("options") or ""
    return make_conninfo(url, options=f"{old} {options}".strip())


def _fill(client: Client, messages: int) -> None:
    for _ in range(messages // _PARTITIONS + 1):
        client.push_many("breakdown", [(f"p{number}", MESSAGE) for number in range(_PARTITIONS)])


def _take(client: Client) -> tuple[float, float]:
    begun = time.perf_counter()
    batch = client.pop("breakdown", "g", max_messages=1, wait=1.0)
    taken = time.perf_counter()
    assert batch is not None  # noqa: S101
    batch.ack()
    return taken - begun, time.perf_counter() - taken


def _statements(url: str, calls: int) -> dict[str, list[float]]:
    """Time a statement that does nothing, and the smallest one that writes."""
    timed: dict[str, list[float]] = {"nothing": [], "write": [], "write_unflushed": []}
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE public.written (number integer)")

        def write() -> None:
            connection.execute("INSERT INTO public.written VALUES (1)")

        for number in range(calls + WARM_UP):
            timings = {"nothing": _timed(lambda: connection.execute("SELECT 1"))}
            for name, setting in (("write", "on"), ("write_unflushed", "off")):
                connection.execute("SELECT set_config('synchronous_commit', %s, false)", (setting,))
                timings[name] = _timed(write)
            if number >= WARM_UP:
                for name, seconds in timings.items():
                    timed[name].append(seconds)
        connection.execute("DROP TABLE public.written")
    return timed


def _timed(action: Callable[[], object]) -> float:
    begun = time.perf_counter()
    action()
    return time.perf_counter() - begun


def _functions(url: str, relaxed: str, calls: int) -> list[Function]:
    """Have the server count its functions while single messages are taken."""
    with psycopg.connect(url, autocommit=True) as connection:
        try:
            connection.execute("SET track_functions = 'all'")
        except psycopg.errors.InsufficientPrivilege:
            return []
        with Client(relaxed) as client:
            # What happens once does not count.
            client.create_group("breakdown", "g")
            for _ in range(WARM_UP):
                _take(client)
        with Client(with_options(relaxed, "-c track_functions=all")) as client:
            for _ in range(calls):
                _take(client)
        # Sessions report their counts a moment after they end.
        until = time.monotonic() + _PATIENCE
        found = _counted(connection)
        while time.monotonic() < until and max((row[1] for row in found), default=0) < calls:
            time.sleep(0.05)
            found = _counted(connection)
    return [
        Function(name, count / calls, total * 1e3 / count, own * 1e3 / count)
        for name, count, total, own in sorted(found, key=lambda row: -row[3])
        if own * 1e3 / calls >= 1
    ]


def _counted(connection: psycopg.Connection[Any]) -> list[tuple[str, int, float, float]]:
    connection.execute("SELECT pg_stat_clear_snapshot()")
    return connection.execute(_FUNCTIONS).fetchall()
