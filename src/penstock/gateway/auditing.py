"""The audit log of the gateway: an administrative act is written before it is done, and its result after that.

So nothing is changed that is not in the log: if it cannot be written the request fails. An act whose result is `begun`
was interrupted, and may have been done.
"""

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from penstock.broker.operations.keys import FinishAct, RecordAct
from penstock.errors import InvalidInput, PenstockError
from penstock.gateway.call import Call
from penstock.gateway.problems import Refused

log = logging.getLogger("penstock.gateway")

# Arguments that are nested more deeply are cut there: whoever reads the log must be able to decode them.
_DEEPEST = 20


def origin_of(call: Call) -> str | None:
    """Return the address that a request comes from."""
    return None if call.request.client is None else call.request.client.host


@asynccontextmanager
async def act(call: Call, action: str, target: str, details: Any = None) -> AsyncIterator[None]:
    """Write what the body does to the audit log."""
    client = call.gateway.client
    act_id = await client.run(
        RecordAct(call.caller or "anybody", action, target, _plain(details), origin_of(call), "begun")
    )
    result = "interrupted"
    try:
        yield
        result = "ok"
    except PenstockError as error:
        result = error.code
        raise
    except Refused as error:
        result = error.problem.code
        raise
    except Exception:
        result = "internal"
        raise
    finally:
        try:
            await client.run(FinishAct(act_id, result))
        except PenstockError as error:
            log.warning("the result of act %s, %s, could not be written to the audit log: %s", act_id, result, error)


def _plain(details: Any) -> dict[str, Any] | None:
    """Return arguments as JSON has them, without what nobody gave."""
    # Through JSON, since parts of a body may still be JSON that nobody has read.
    try:
        plain = msgspec.json.decode(msgspec.json.encode(details))
    except RecursionError:
        # It was just not too deep for who has decoded the body.
        raise InvalidInput("the body is nested too deeply") from None
    if not isinstance(plain, Mapping):
        return None
    return {str(name): _cut(value) for name, value in plain.items() if value not in (None, {}, [])} or None


def _cut(value: Any, depth: int = _DEEPEST) -> Any:
    if isinstance(value, dict):
        return {name: _cut(each, depth - 1) for name, each in value.items()} if depth else "…"
    if isinstance(value, list):
        return [_cut(each, depth - 1) for each in value] if depth else "…"
    return value
