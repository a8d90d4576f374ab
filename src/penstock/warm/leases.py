"""The leases of the warm tier. They tell by themselves that they are: PostgreSQL's are UUIDs of version 4, these of 8.

All that one take was given has one token, and each run of it, which a consumer sees as a claim, a lease id of its own:
the token with the number of the run in the last 16 bits.
"""

import secrets
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple
from uuid import UUID

from penstock import forks

_VERSION = 8
_RUN_BITS = 16
_RUNS = (1 << _RUN_BITS) - 1
_CLEAR = ~((0xF << 76) | (0x3 << 62) | _RUNS)
_MARK = (_VERSION << 76) | (0x2 << 62)


class Token(NamedTuple):
    """A take, as Valkey knows it, and the number of a run of it, from 1."""

    text: str
    run: int


# Tokens for the next takes: to ask the system for random bytes, one by one, takes longer than all else here.
_tokens: list[str] = []
_AT_ONCE = 256


@forks.reset_in_children
def _begin() -> None:
    """Forget those that the parent will use."""
    _tokens.clear()


def new_token() -> str:
    """Return the token of a new take."""
    try:
        return _tokens.pop()
    except IndexError:
        some = secrets.token_bytes(16 * _AT_ONCE)
        first, *rest = (
            f"{int.from_bytes(some[at : at + 16], 'big') & _CLEAR | _MARK:032x}" for at in range(0, len(some), 16)
        )
        _tokens.extend(rest)
        return first


def leases_of(token: str) -> Callable[[int], UUID]:
    """Return what makes the lease id of a run from its number."""
    whole = int(token, 16)
    return lambda run: UUID(int=whole | run)


def token_of(lease_id: UUID) -> Token:
    """Return what a lease id stands for."""
    number = lease_id.int
    return Token(_text(number & ~_RUNS), number & _RUNS)


# All that one take was given is settled together, most of the time.
@lru_cache(256)
def _text(token: int) -> str:
    return f"{token:032x}"


def is_warm(lease_id: UUID | None) -> bool:
    """Return whether a lease is one of the warm tier."""
    return lease_id is not None and (lease_id.int >> 76) & 0xF == _VERSION
