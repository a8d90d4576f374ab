"""The statements of API keys, sessions and the audit log."""

from collections.abc import Sequence
from datetime import datetime

from penstock.broker.audit import ActInfo
from penstock.broker.keys import KeyInfo, Session, StoredKey
from penstock.broker.operations.keys import (
    BeginSession,
    CreateKey,
    EndSession,
    FindKey,
    FindSession,
    FinishAct,
    HasKeys,
    ListActs,
    ListKeys,
    NoteKeyUse,
    RecordAct,
    RevokeKey,
    RotateKey,
)
from penstock.postgres.statements.call import Call, Row, json_text, nothing, scalar, statement


@statement(CreateKey)
def create_key(wanted: CreateKey) -> Call[KeyInfo]:
    return Call(
        "SELECT * FROM penstock.create_key(%s::text, %s::text, %s::bytea, %s::text[], %s::timestamptz, %s::float8,"
        " %s::integer, %s::text, %s::text)",
        (
            wanted.key_id,
            wanted.name,
            wanted.secret_hash,
            list(wanted.scopes),
            wanted.expires_at,
            wanted.rate_limit,
            wanted.burst,
            wanted.actor,
            wanted.origin,
        ),
        _one_key,
    )


@statement(ListKeys)
def list_keys(wanted: ListKeys) -> Call[list[KeyInfo]]:
    return Call(
        "SELECT * FROM penstock.list_keys(%s::boolean)",
        (wanted.revoked,),
        lambda rows: [KeyInfo(*row) for row in rows],
    )


@statement(RevokeKey)
def revoke_key(wanted: RevokeKey) -> Call[KeyInfo]:
    return Call(
        "SELECT * FROM penstock.revoke_key(%s::text, %s::text, %s::text)",
        (wanted.key, wanted.actor, wanted.origin),
        _one_key,
    )


@statement(RotateKey)
def rotate_key(wanted: RotateKey) -> Call[KeyInfo]:
    return Call(
        "SELECT * FROM penstock.rotate_key(%s::text, %s::bytea, %s::float8, %s::text, %s::text)",
        (wanted.key, wanted.secret_hash, wanted.grace, wanted.actor, wanted.origin),
        _one_key,
    )


@statement(FindKey)
def find_key(wanted: FindKey) -> Call[StoredKey | None]:
    return Call(
        "SELECT * FROM penstock.find_key(%s::text)",
        (wanted.key_id,),
        lambda rows: StoredKey(*rows[0]) if rows else None,
    )


@statement(HasKeys)
def has_keys(wanted: HasKeys) -> Call[bool]:
    return Call("SELECT penstock.has_keys()", (), scalar)


@statement(NoteKeyUse)
def note_key_use(wanted: NoteKeyUse) -> Call[None]:
    return Call("SELECT penstock.note_key_use(%s::text[])", (list(wanted.key_ids),), nothing)


@statement(BeginSession)
def begin_session(wanted: BeginSession) -> Call[datetime]:
    return Call(
        "SELECT penstock.begin_session(%s::bytea, %s::text, %s::float8)",
        (wanted.session_hash, wanted.key_id, wanted.seconds),
        scalar,
    )


@statement(FindSession)
def find_session(wanted: FindSession) -> Call[Session | None]:
    return Call(
        "SELECT * FROM penstock.find_session(%s::bytea)",
        (wanted.session_hash,),
        lambda rows: Session(*rows[0]) if rows else None,
    )


@statement(EndSession)
def end_session(wanted: EndSession) -> Call[bool]:
    return Call("SELECT penstock.end_session(%s::bytea)", (wanted.session_hash,), scalar)


@statement(RecordAct)
def record_act(wanted: RecordAct) -> Call[int]:
    return Call(
        "SELECT penstock.record_act(%s::text, %s::text, %s::text, %s::jsonb, %s::text, %s::text)",
        (
            wanted.actor,
            wanted.action,
            wanted.target,
            None if wanted.details is None else json_text(wanted.details),
            wanted.origin,
            wanted.result,
        ),
        scalar,
    )


@statement(FinishAct)
def finish_act(wanted: FinishAct) -> Call[None]:
    return Call("SELECT penstock.finish_act(%s::bigint, %s::text)", (wanted.act_id, wanted.result), nothing)


@statement(ListActs)
def list_acts(wanted: ListActs) -> Call[list[ActInfo]]:
    return Call(
        "SELECT * FROM penstock.list_acts(%s::bigint, %s::integer, %s::text, %s::text, %s::timestamptz)",
        (wanted.before, wanted.limit, wanted.actor, wanted.action, wanted.since),
        lambda rows: [ActInfo(*row) for row in rows],
    )


def _one_key(rows: Sequence[Row]) -> KeyInfo:
    return KeyInfo(*rows[0])
