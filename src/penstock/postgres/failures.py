"""Whatever a driver raises becomes a `PenstockError` that says what to do.

The engine answers with SQLSTATEs, so one table serves every driver: psycopg, asyncpg, psycopg2, and those that
SQLAlchemy and Django wrap.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psycopg

from penstock import sql
from penstock.errors import (
    AlreadyExists,
    CheckpointError,
    InvalidInput,
    LockTimeout,
    MessageTooLarge,
    NotFound,
    PenstockError,
    QueuePaused,
    RateLimited,
    ReadOnlyServer,
    Retryable,
    SetupError,
    TimedOut,
    Unavailable,
)

_ADVICE: dict[str, tuple[type[PenstockError], str]] = {
    "22023": (InvalidInput, ""),
    "23514": (InvalidInput, ""),
    "22P02": (InvalidInput, ""),
    "22P05": (InvalidInput, ""),
    "22003": (InvalidInput, ""),
    "22008": (InvalidInput, ""),
    "22009": (InvalidInput, ""),
    "2201W": (InvalidInput, ""),
    "22021": (InvalidInput, ""),
    "54000": (MessageTooLarge, ""),
    "42704": (NotFound, ""),
    "42710": (AlreadyExists, ""),
    "40001": (Retryable, "Run the whole transaction again."),
    "40P01": (Retryable, "Two transactions took partitions in opposite order. Run it again."),
    "55P03": (
        LockTimeout,
        "Somebody's transaction has held a partition's lock too long (penstock.lock_timeout). Run it again; "
        "`penstock doctor` names the long transactions.",
    ),
    "55006": (Retryable, ""),
    # Penstock's own: what a checkpoint says and what was published do not fit.
    "55PS1": (CheckpointError, ""),
    # Pushes to the queue are paused, or over its rate.
    "55PS2": (QueuePaused, ""),
    "55PS3": (RateLimited, ""),
    "57014": (TimedOut, "It was cancelled; raise PENSTOCK_TIMEOUT if it needs longer."),
    "25006": (ReadOnlyServer, "This server is read-only: connect to the primary."),
    "42501": (SetupError, ""),
    "3F000": (SetupError, "Run `penstock migrate`."),
    "42P01": (SetupError, "Run `penstock migrate`."),
    "42883": (SetupError, "Run `penstock migrate`."),
    "28P01": (SetupError, "Check the user and the password in PENSTOCK_URL."),
    "28000": (SetupError, "Check the user in PENSTOCK_URL and the server's pg_hba.conf."),
    "3D000": (SetupError, "Create the database, or name another one in PENSTOCK_URL."),
    "53100": (Unavailable, "The server's disk is full."),
    "53300": (
        Unavailable,
        "The server has no free connection; lower PENSTOCK_POOL_SIZE or use a pooler.",
    ),
}
_CLASSES: dict[str, tuple[type[PenstockError], str]] = {
    "08": (Unavailable, "The connection broke; the outcome of this call is unknown."),
    "57": (Unavailable, "The server is stopping or starting; try again."),
}


def sqlstate_of(error: BaseException) -> str | None:
    """Return the SQLSTATE that an error of any driver carries, wrapped or not."""
    seen: BaseException | None = error
    while seen is not None:
        for attribute in ("sqlstate", "pgcode"):
            code = getattr(seen, attribute, None)
            if isinstance(code, str):
                return code
        seen = getattr(seen, "orig", None) or seen.__cause__
    return None


def translate(error: BaseException) -> PenstockError | None:
    """Return what to raise for a driver's error, or None where it is not the database's doing."""
    code = sqlstate_of(error)
    if code is None:
        return _unsendable(error)
    kind, advice = _ADVICE.get(code) or _CLASSES.get(code[:2]) or (PenstockError, "")
    said = _primary_message(error)
    if code == "42501":
        advice = _missing_role(said)
    text = f"{said}. {advice}" if advice else said
    return RateLimited(text, _retry_after(error)) if kind is RateLimited else kind(text)


def _retry_after(error: BaseException) -> float:
    """Return the seconds that the server says in the detail of its error."""
    seen = _innermost(error)
    detail = getattr(getattr(seen, "diag", None), "message_detail", None) or getattr(seen, "detail", None)
    return float(detail or 0)


def _missing_role(said: str) -> str:
    """Say which role has what was refused; the function's name is the same in every language."""
    granted = sql.granted()
    roles = next((granted[word] for word in re.findall(r"\w+", said) if word in granted), ())
    choice = "|".join(roles or ("producer", "consumer", "admin"))
    return f"Ask the owner of the schema penstock, or a superuser, for a role: `penstock grant {choice} USER`."


def _unsendable(error: BaseException) -> InvalidInput | None:
    """Return what to raise for a value that the driver could not even send."""
    if isinstance(error, UnicodeEncodeError):
        return InvalidInput(f"{error.object!r:.100} cannot be written as UTF-8")
    if isinstance(error, psycopg.DataError):
        return InvalidInput(f"a value cannot be sent to PostgreSQL: {error}")
    return None


@contextmanager
def translated(but: Sequence[BaseException] = ()) -> Iterator[None]:
    """Translate what the body raises, but for errors that are somebody else's."""
    try:
        yield
    except PenstockError:
        raise
    except Exception as error:
        known = None if any(error is theirs for theirs in but) else translate(error)
        if known is None:
            raise
        raise known from error


def _innermost(error: BaseException) -> BaseException:
    seen: BaseException = error
    while (inner := getattr(seen, "orig", None) or seen.__cause__) is not None:
        seen = inner
    return seen


def _primary_message(error: BaseException) -> str:
    seen = _innermost(error)
    diagnostics = getattr(seen, "diag", None)
    said = getattr(diagnostics, "message_primary", None) or getattr(seen, "message", None)
    hint = getattr(diagnostics, "message_hint", None) or getattr(seen, "hint", None)
    text = str(said or seen).strip().rstrip(".")
    return f"{text}. {hint.rstrip('.')}" if hint else text
