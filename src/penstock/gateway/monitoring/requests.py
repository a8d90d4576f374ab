"""Around every request: its id, its time, one line of the log. No value of a message and no secret is in any of it."""

import logging
import time

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock import tracing
from penstock.gateway import request_ids
from penstock.gateway.endpoint import Endpoint
from penstock.gateway.monitoring.instruments import Instruments

log = logging.getLogger("penstock.gateway.requests")

ALL, ERRORS, NONE = "all", "errors", "none"
_ELSEWHERE = "none"
_REQUEST_ID = request_ids.HEADER.lower().encode()
_NOT_SNIFFED = (b"x-content-type-options", b"nosniff")


class Requests:
    """Middleware that gives each request an id, counts and times it, and logs it."""

    def __init__(self, app: ASGIApp, instruments: Instruments, logged: str = ERRORS) -> None:
        self._app = app
        self._instruments = instruments
        self._logged = logged

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = request_ids.request_id(headers.get(request_ids.HEADER))
        token = request_ids.current.set(given)
        # What a caller gets who has gone before there was an answer.
        status = 499

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                # A browser must not take what a message holds for a page.
                message["headers"] += ((_REQUEST_ID, given.encode()), _NOT_SNIFFED)
            await send(message)

        began = time.perf_counter()
        self._instruments.in_progress.inc()
        with tracing.serving(headers, scope["method"]) as answered:
            try:
                await self._app(scope, receive, send_with_id)
            finally:
                self._instruments.in_progress.dec()
                answered(self._note(scope, given, status, time.perf_counter() - began), status)
                request_ids.current.reset(token)

    def _note(self, scope: Scope, given: str, status: int, seconds: float) -> str:
        """Count and log a request, and return the path of its route."""
        # Not the method as it was sent: anything may be there.
        route, method, streams = _ELSEWHERE, "OTHER", False
        endpoint = scope.get("endpoint")
        if isinstance(endpoint, Endpoint):
            route, method, streams = endpoint.known(scope["method"])
        self._instruments.requests.labels(method, route, str(status)).inc()
        if not streams:
            self._instruments.request_seconds.labels(method, route).observe(seconds)
        if self._logged == ALL or (self._logged == ERRORS and status >= 400):
            level = logging.WARNING if status >= 500 else logging.INFO
            if log.isEnabledFor(level):
                fields = {
                    "request_id": given,
                    "key": scope.get("state", {}).get("caller"),
                    "method": method,
                    "route": route,
                    "status": status,
                    "duration_ms": round(1000 * seconds, 3),
                }
                log.log(level, "request", extra={"fields": fields})
        return route
