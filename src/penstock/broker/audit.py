"""The audit log: who changed what, when, from where, and how it went."""

from datetime import datetime
from typing import Any

import msgspec


class ActInfo(msgspec.Struct, frozen=True):
    """One administrative act.

    `actor` is `key:` and the name of an API key, `jwt:` and the subject of a token, or `user:` and a database user;
    `db_user` is the database user that wrote it. `result` is 'ok', or the code of the error.
    """

    act_id: int
    at: datetime
    actor: str
    action: str
    target: str
    details: dict[str, Any] | None
    origin: str | None
    result: str
    db_user: str
