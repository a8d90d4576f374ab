"""The schedule of faults: who is killed, and when. A seed gives the same schedule every time."""

import random
from collections.abc import Iterator
from itertools import chain, repeat
from typing import NamedTuple

ROLES = (
    *("produce",) * 5,
    *("once", "later"),
    *("ordered",) * 4,
    *("shared",) * 4,
    *("relaxed",) * 2,
    *("ahead",) * 2,
)
# Twice within a short run, and then so rarely that its keeper does not give it up: it does after six ends in a minute.
FIRST_KILLS = ((2.0, 4.0), (4.0, 6.0))
LATER_KILLS = (14.0, 20.0)
CLIENT_EVERY = 0.4


class Fault(NamedTuple):
    """At so many seconds from the beginning, somebody is killed: "server", "maintenance", or a client by its place."""

    at: float
    whom: str
    place: int = 0


def schedule(seed: int) -> Iterator[Fault]:
    """Yield faults for ever, in order of time."""
    chance = random.Random(seed)
    now = 0.0
    pauses = chain(FIRST_KILLS, repeat(LATER_KILLS))
    server_at = chance.uniform(*next(pauses))
    maintenance_at = chance.uniform(1.0, 3.0)
    while True:
        now += chance.uniform(0.5, 1.5) * CLIENT_EVERY
        if now > server_at:
            server_at = now + chance.uniform(*next(pauses))
            yield Fault(now, "server")
        elif now > maintenance_at:
            maintenance_at = now + chance.uniform(1.0, 4.0)
            yield Fault(now, "maintenance")
        else:
            yield Fault(now, "client", chance.randrange(len(ROLES)))
