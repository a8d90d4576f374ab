"""Hints: a stream of the queues that somebody pushes to, so that consumers elsewhere look sooner."""

import asyncio
from collections.abc import AsyncIterator, Collection

import msgspec
from starlette.responses import Response, StreamingResponse

from penstock.gateway.access.callers import Caller
from penstock.gateway.call import Call
from penstock.gateway.route import NDJSON
from penstock.gateway.scopes import Scope

# A caller who hears nothing for longer knows that the connection is gone.
_SIGN_OF_LIFE = 15.0
# One line for all that was pushed meanwhile.
_PAUSE = 0.01
_MOST_QUEUES = 1000


async def hints(call: Call) -> Response:
    """Stream lists of queues that were pushed to, one a line: of those that the caller may pop from.

    A hint may be lost: look now and then as well.
    """
    call.gateway.hint_slots.check(call.caller)
    headers = {"Cache-Control": "no-store"}
    if call.request.method == "HEAD":
        return Response(headers=headers, media_type=NDJSON)
    caller = await call.gateway.authority.caller_of(call.request)
    return StreamingResponse(_lines(call, caller), media_type=NDJSON, headers=headers)


async def _lines(call: Call, caller: Caller) -> AsyncIterator[bytes]:
    loop = asyncio.get_running_loop()
    pushed: set[str] = set()
    changed = asyncio.Event()

    def note(queues: Collection[str]) -> None:
        if len(pushed) < _MOST_QUEUES:
            pushed.update(queue for queue in queues if caller.allows(Scope.POP, queue))
        changed.set()

    def hear(queues: Collection[str]) -> None:
        loop.call_soon_threadsafe(note, list(queues))

    stopping = asyncio.ensure_future(call.gateway.stopping.wait())
    waiting = asyncio.ensure_future(changed.wait())
    try:
        with call.gateway.hint_slots.held(call.caller), call.gateway.client.pushes_followed(hear):
            yield b"[]\n"
            while not stopping.done():
                await asyncio.wait([stopping, waiting], timeout=_SIGN_OF_LIFE, return_when=asyncio.FIRST_COMPLETED)
                if not changed.is_set():
                    yield b"[]\n"
                    continue
                changed.clear()
                found = list(pushed)
                pushed.clear()
                waiting = asyncio.ensure_future(changed.wait())
                yield msgspec.json.encode(found) + b"\n"
                await asyncio.sleep(_PAUSE)
    finally:
        stopping.cancel()
        waiting.cancel()
