"""The schedule of faults: who is killed, and when. A seed gives the same schedule every time."""

import random
from collections.abc import Iterator
from typing import NamedTuple

ROLES = ("produce",) * 5 + ("once",) + ("later",) + ("ordered",) * 4 + ("shared",) * 4
# A server takes a second or two to come back, and what it was doing is what we want to see.
SERVER_EVERY = 5.0
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
    server_at = chance.uniform(0.5, 1.0) * SERVER_EVERY
    maintenance_at = chance.uniform(1.0, 3.0)
    while True:
        now += chance.uniform(0.5, 1.5) * CLIENT_EVERY
        if now > server_at:
            server_at = now + chance.uniform(0.5, 1.5) * SERVER_EVERY
            yield Fault(now, "server")
        elif now > maintenance_at:
            maintenance_at = now + chance.uniform(1.0, 4.0)
            yield Fault(now, "maintenance")
        else:
            yield Fault(now, "client", chance.randrange(len(ROLES)))
