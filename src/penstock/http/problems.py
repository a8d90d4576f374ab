"""Errors over HTTP: `application/problem+json` (RFC 9457) with the code of the error class, and back to the class."""

from functools import cache

import msgspec

from penstock import errors
from penstock.errors import PenstockError

MEDIA = "application/problem+json"


class Problem(msgspec.Struct, frozen=True):
    """What went wrong. `code` stays the same in all versions; `hint` says what to do."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    hint: str
    retry_after: float | None = None
    # The answer's X-Request-Id, which the log of the gateway has, too.
    request_id: str | None = None


class _Kind(msgspec.Struct, frozen=True):
    status: int
    hint: str
    # After how many seconds to try again, where that may help.
    retry_after: float | None = None


_KINDS: dict[type[PenstockError], _Kind] = {
    errors.MessageTooLarge: _Kind(413, "Push a reference to the data, or raise max_message_bytes of the queue."),
    errors.AlreadyExists: _Kind(409, "It is there: use it, or change it with PATCH."),
    errors.IdempotencyKeyReused: _Kind(422, "Give each push a key of its own; send the same one again unchanged."),
    errors.InvalidInput: _Kind(400, "Correct the request; /docs describes it."),
    errors.NotFound: _Kind(404, "Check the name; retention may have dropped a message."),
    errors.Cancelled: _Kind(409, "It has no result, and will have none."),
    errors.HandlerFailed: _Kind(409, "It has no result unless it is redriven; its dead letter says why."),
    errors.LeaseLost: _Kind(409, "Stop the work: the messages are delivered again."),
    errors.Retryable: _Kind(503, "Nothing was changed: send the request again.", 1.0),
    errors.QueuePaused: _Kind(409, "Push again when the queue is resumed.", 10.0),
    errors.RateLimited: _Kind(429, "Send the request again after the time in Retry-After."),
    errors.TimedOut: _Kind(504, "Look whether it took effect; a push with an Idempotency-Key can be sent again.", 1.0),
    errors.Unavailable: _Kind(503, "Send it again later; a push with an Idempotency-Key takes effect once.", 1.0),
    errors.Unauthenticated: _Kind(401, "Send `Authorization: Bearer …` with an API key or a token."),
    errors.Forbidden: _Kind(403, "Use a key whose scopes and queues allow this."),
    errors.NotOverHttp: _Kind(501, "Use a client with the address of the database."),
    errors.ReadOnlyServer: _Kind(503, "Send changes to a gateway of the primary."),
    errors.SetupError: _Kind(500, "Run `penstock doctor` where the gateway runs."),
    PenstockError: _Kind(500, "See the detail, and the log of the gateway."),
}


def problem_of(error: PenstockError) -> Problem:
    """Describe an error."""
    kind = next(_KINDS[each] for each in type(error).__mro__ if each in _KINDS)
    retry_after = error.retry_after if isinstance(error, errors.RateLimited) else kind.retry_after
    return Problem(
        f"urn:penstock:{error.code}",
        error.code.replace("_", " ").capitalize(),
        kind.status,
        str(error) or type(error).__name__,
        error.code,
        kind.hint,
        retry_after,
    )


def error_of(problem: Problem) -> PenstockError:
    """Return the error that a problem describes."""
    # A code that has no class is one of the gateway itself: that it is not ready, or is ending.
    unknown = errors.Unavailable if problem.status in (502, 503, 504) else PenstockError
    kind = classes().get(problem.code, unknown)
    if issubclass(kind, errors.RateLimited):
        return kind(problem.detail, problem.retry_after or 0.0)
    if issubclass(kind, errors.MissingExtra):
        # Of the gateway, and not of this process.
        return errors.SetupError(problem.detail)
    return kind(problem.detail)


@cache
def classes() -> dict[str, type[PenstockError]]:
    """Return all classes of errors by their code."""
    found = {PenstockError.code: PenstockError}
    pending = [PenstockError]
    while pending:
        for kind in pending.pop().__subclasses__():
            found.setdefault(kind.code, kind)
            pending.append(kind)
    return found
