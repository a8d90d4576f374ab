"""The scopes that routes declare, and what they are about. `access.authority` decides who has them."""

from enum import Enum, StrEnum
from functools import lru_cache
from ipaddress import ip_address
from typing import Final


class Scope(StrEnum):
    """What a caller must be allowed to do. `NONE` is open to everybody.

    `USE` is push or pop: for what clients of either kind report of themselves. No key has it.
    """

    PUSH = "push"
    POP = "pop"
    READ = "read"
    ADMIN = "admin"
    USE = "use"
    NONE = "none"


class AnyQueue(Enum):
    """See `ANY_QUEUE`."""

    ANY_QUEUE = "any queue"


# For what names no queue and belongs to a caller already, such as a lease, whose id is a secret; and for routes whose
# handlers ask for each queue that the body names.
ANY_QUEUE: Final = AnyQueue.ANY_QUEUE


@lru_cache(1024)
def is_loopback(host: str) -> bool:
    """Say whether a host is this machine and no other; a socket file is."""
    if host in ("localhost", ""):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
