"""The id of the request that is being answered: in its answer, in problems, and in the log."""

import re
from contextvars import ContextVar
from uuid import uuid4

HEADER = "X-Request-Id"
_FORM = re.compile(r"[\w.:/+=-]{1,128}", re.ASCII)

current: ContextVar[str | None] = ContextVar("penstock_request_id", default=None)


def request_id(given: str | None) -> str:
    """Return the id that a caller gave, if it is fit to be logged, or a new one."""
    return given if given is not None and _FORM.fullmatch(given) else uuid4().hex
