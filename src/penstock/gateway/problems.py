"""Errors as answers: problem+json with a stable code and a hint."""

import logging
import math
from collections.abc import Mapping

import msgspec
from starlette.responses import Response

from penstock.errors import PenstockError
from penstock.gateway import request_ids
from penstock.http.problems import MEDIA, Problem, problem_of

log = logging.getLogger("penstock.gateway")


class Refused(Exception):
    """A request that is refused for a reason of HTTP, before any operation runs."""

    def __init__(
        self, status: int, code: str, detail: str, hint: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(detail)
        self.headers = headers or {}
        self.problem = Problem(f"urn:penstock:{code}", code.replace("_", " ").capitalize(), status, detail, code, hint)


def answer_to(error: Exception) -> Response:
    """Return the answer to a request that failed."""
    headers: dict[str, str] = {}
    if isinstance(error, Refused):
        problem = error.problem
        headers.update(error.headers)
    elif isinstance(error, PenstockError):
        problem = msgspec.structs.replace(problem_of(error), detail=public_text(error))
    else:
        # What we did not think of: its text may have anything in it, so it stays in the log.
        log.error("a request failed", exc_info=error)
        problem = Problem(
            "urn:penstock:internal", "Internal", 500, "the gateway failed", "internal", "See the gateway's log."
        )
    problem = msgspec.structs.replace(problem, request_id=request_ids.current.get())
    if problem.retry_after is not None:
        headers["Retry-After"] = str(max(1, math.ceil(problem.retry_after)))
    if problem.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return Response(msgspec.json.encode(problem), problem.status, headers, MEDIA)


def public_text(error: PenstockError) -> str:
    """Return what callers are told of an error, who may be anybody: not where the database is, nor its user."""
    if error.public is not None:
        log.warning("a request failed: %s", error)
    return error.public or str(error) or type(error).__name__
