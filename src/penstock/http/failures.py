"""What goes wrong on the way to a gateway, as errors of penstock."""

import msgspec

from penstock.errors import InvalidInput, PenstockError, SetupError, TimedOut, Unauthenticated, Unavailable
from penstock.http.answers import Answer
from penstock.http.problems import Problem, error_of

_problems = msgspec.json.Decoder(Problem)


class NotSent(Unavailable):
    """The gateway could not be reached, so that it has not got the request."""


class NoConnectionFree(NotSent, TimedOut):
    """All connections of the client were in use."""


def unreachable(address: object, error: BaseException) -> NotSent:
    """Return what to raise when nothing answers at an address."""
    why = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return NotSent(f"the gateway at {address} cannot be reached: {why}. Is `penstock serve` running there?")


def broken(address: object, error: BaseException) -> Unavailable:
    """Return what to raise when a connection broke during a call."""
    why = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return Unavailable(f"the connection to the gateway at {address} broke: {why}")


def timed_out(address: object, seconds: float) -> TimedOut:
    """Return what to raise when there is no answer in time."""
    return TimedOut(f"the gateway at {address} did not answer within {seconds:g} seconds")


def exhausted(size: int) -> NoConnectionFree:
    """Return what to raise when all connections are in use."""
    return NoConnectionFree(f"all {size} connections to the gateway are in use; raise PENSTOCK_POOL_SIZE")


def error_in(answer: Answer) -> PenstockError:
    """Return the error that an answer describes."""
    try:
        return error_of(_problems.decode(answer.body))
    except msgspec.MsgspecError:
        pass
    said = f"the gateway, or a proxy before it, answered with status {answer.status}"
    match answer.status:
        case 401 | 407:
            return Unauthenticated(said)
        case 408 | 504:
            return TimedOut(said)
        case 413 | 414 | 431:
            return InvalidInput(f"{said}: the request is too large for it")
        case 429 | 502 | 503:
            return Unavailable(said)
        case 404:
            return SetupError(f"{said}: is that the address of a gateway of this version?")
        case _:
            return PenstockError(said)
