"""The names of keys in Valkey. All begin with `penstock:`, and those of a group share a hash tag."""

from typing import NamedTuple


class Keys(NamedTuple):
    """The keys of a group's window, in the order in which functions take them; functions.lua says what they hold."""

    meta: str
    ready: str
    claims: str
    due: str
    done: str


def keys_of(database: str, group_id: int) -> Keys:
    """Return the keys of a group."""
    tag = f"penstock:{{{database}.{group_id}}}"
    return Keys(*(f"{tag}:{name}" for name in Keys._fields))


def windows_key(database: str) -> str:
    """Return the hash that tells which groups of a database have a window: name -> id and lease time."""
    return f"penstock:{{{database}}}:windows"


def wake_channel(database: str) -> str:
    """Return the channel on which those who wait hear that something can be taken."""
    return f"penstock:{{{database}}}:loaded"


def window_field(queue: str, group: str) -> str:
    """Return the name of a group in the hash of windows; no name has a control character."""
    return f"{queue}\x1f{group}"


def names_of(field: str) -> tuple[str, str]:
    """Return the names of queue and group of such a field."""
    queue, _, group = field.partition("\x1f")
    return queue, group
