"""API keys, the sessions that are begun with them, and the audit log."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from penstock.broker.audit import ActInfo
from penstock.broker.keys import KeyInfo, Session, StoredKey, check_hash, check_key_ids, check_limit, parse_grants
from penstock.broker.names import check_moment, check_names, check_whole
from penstock.broker.operations.operation import Operation, Repeatable


class CreateKey(Operation[KeyInfo], frozen=True):
    """Create an API key, of whose secret only the hash is sent.

    `actor` and `origin` are who does it and from where, if somebody does it for another.
    """

    key_id: str
    name: str
    secret_hash: bytes
    scopes: Sequence[str]
    expires_at: datetime | None = None
    rate_limit: float | None = None
    burst: int | None = None
    actor: str | None = None
    origin: str | None = None

    def __post_init__(self) -> None:
        check_key_ids([self.key_id])
        check_names(self.name, what=("name",))
        check_hash(self.secret_hash)
        parse_grants(self.scopes)
        check_moment(self.expires_at)
        check_limit(self.rate_limit, self.burst)


class ListKeys(Repeatable[list[KeyInfo]], frozen=True):
    """List the API keys, with those that are revoked or without."""

    revoked: bool = False


class RevokeKey(Operation[KeyInfo], frozen=True):
    """Revoke an API key by its name or id."""

    key: str
    actor: str | None = None
    origin: str | None = None

    def __post_init__(self) -> None:
        check_names(self.key, what=("key",))


class RotateKey(Operation[KeyInfo], frozen=True):
    """Give an API key a new secret; the old one is valid for `grace` seconds more."""

    key: str
    secret_hash: bytes
    grace: float = 0.0
    actor: str | None = None
    origin: str | None = None

    def __post_init__(self) -> None:
        check_names(self.key, what=("key",))
        check_hash(self.secret_hash)


class FindKey(Repeatable[StoredKey | None], frozen=True):
    """Find an API key that is neither revoked nor expired, for who has to check it."""

    key_id: str

    def __post_init__(self) -> None:
        check_key_ids([self.key_id])


class HasKeys(Repeatable[bool], frozen=True):
    """Say whether there is an API key that is neither revoked nor expired."""


class NoteKeyUse(Operation[None], frozen=True):
    """Note that API keys were used."""

    key_ids: Sequence[str]

    def __post_init__(self) -> None:
        check_key_ids(self.key_ids)


class BeginSession(Operation[datetime], frozen=True):
    """Begin a session of somebody who has shown an API key; the reply is when it ends."""

    session_hash: bytes
    key_id: str
    seconds: float

    def __post_init__(self) -> None:
        check_hash(self.session_hash)
        check_key_ids([self.key_id])


class FindSession(Repeatable[Session | None], frozen=True):
    """Find whose session it is; None if it is over."""

    session_hash: bytes

    def __post_init__(self) -> None:
        check_hash(self.session_hash)


class EndSession(Repeatable[bool], frozen=True):
    """End a session; the reply is whether there was one."""

    session_hash: bytes

    def __post_init__(self) -> None:
        check_hash(self.session_hash)


class RecordAct(Operation[int], frozen=True):
    """Write an administrative act to the audit log; the reply is its id."""

    actor: str | None
    action: str
    target: str
    details: dict[str, Any] | None = None
    origin: str | None = None
    result: str = "ok"


class FinishAct(Repeatable[None], frozen=True):
    """Write what came of an act that was recorded before it was done."""

    act_id: int
    result: str


class ListActs(Repeatable[list[ActInfo]], frozen=True):
    """List administrative acts, newest first; `before` is the last id of a page."""

    before: int | None = None
    limit: int = 100
    actor: str | None = None
    action: str | None = None
    since: datetime | None = None

    def __post_init__(self) -> None:
        check_whole("limit", self.limit)
        check_moment(self.since)
        for text, what in ((self.actor, "actor"), (self.action, "action")):
            if text is not None:
                check_names(text, what=(what,))
