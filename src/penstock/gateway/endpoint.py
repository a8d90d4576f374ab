"""Answers the requests to one path: asks who calls, decodes what came, calls the handler, encodes what it gives."""

import asyncio
import gzip
import re
from collections.abc import AsyncIterable, AsyncIterator, Mapping, Sequence
from functools import cache
from typing import Any, get_origin
from urllib.parse import parse_qsl, unquote_to_bytes

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Send
from starlette.types import Scope as Connection

from penstock.errors import InvalidInput, TimedOut, Unauthenticated
from penstock.gateway import auditing, bodies
from penstock.gateway.call import Call, Reply
from penstock.gateway.gateway import Gateway
from penstock.gateway.problems import Refused, answer_to
from penstock.gateway.route import JSON, NDJSON, Route
from penstock.gateway.scopes import ANY_QUEUE
from penstock.gateway.stamping import PUSHER

_encoder = msgspec.json.Encoder()
# Smaller answers are not worth it; higher levels cost more than they save.
_SMALL = 1024
_LEVEL = 4
_ZERO = re.compile(r"q\s*=\s*0(\.0*)?")


class Endpoint:
    """All routes of one path, by method."""

    def __init__(self, gateway: Gateway, routes: Sequence[Route]) -> None:
        self.routes = {route.method: route for route in routes}
        self._gateway = gateway
        self._lists = {route.method: _lists(route.query) for route in routes}

    async def __call__(self, scope: Connection, receive: Receive, send: Send) -> None:
        """Answer a request."""
        request = Request(scope, receive, send)
        try:
            response = await self._answer(request)
        except Exception as error:
            response = answer_to(error)
        await response(scope, receive, send)

    def known(self, method: str) -> tuple[str, str, bool]:
        """Return the path and the method of the route that answers, and whether it streams, for the log."""
        row = self.routes.get("GET" if method == "HEAD" and "HEAD" not in self.routes else method)
        path = next(iter(self.routes.values())).path
        return (path, "OTHER", False) if row is None else (path, row.method, row.streams)

    async def _answer(self, request: Request) -> Response:
        method = "GET" if request.method == "HEAD" and "HEAD" not in self.routes else request.method
        route = self.routes.get(method)
        if route is None:
            raise self._not_allowed(request)
        path = {name: _unquoted(name, text) for name, text in request.path_params.items()}
        authorize = self._gateway.authority.authorize
        in_query = "queue" not in path and _has_queue(route.query)
        of_any = route.in_body or route.shows or in_query
        queue = path.get("queue", ANY_QUEUE if of_any else None)
        caller = await authorize(request, route.scope, queue)
        PUSHER.set(caller)
        # For the log.
        request.state.caller = caller
        query: Any = None if route.query is None else self._query(route, request)
        if in_query and not (route.shows and query.queue is None):
            await authorize(request, route.scope, query.queue)
        body: Any = None
        media = JSON
        if route.body is not None:
            media = bodies.media_of(request, route)
            body = await bodies.read_body(request, self._gateway.limits)
            if media in (JSON, NDJSON):
                bodies.require_text(body)
            if media == JSON:
                body = bodies.decode(body, route.body)
        call = Call(self._gateway, route, request, path, query, body, media, caller)
        if not route.audited:
            return await self._handle(route, call)
        action = f"{route.method} {route.path}"
        async with auditing.act(call, action, request.url.path, {"query": query, "body": _shown(body)}):
            return await self._handle(route, call)

    async def _handle(self, route: Route, call: Call) -> Response:
        if route.streams:
            response = _response(call.request, route, await route.handler(call))
            if isinstance(response, StreamingResponse):
                call.streaming()
                response.body_iterator = self._while_allowed(call, response.body_iterator)
            return response
        # How long it says that it waits, in its query or its body.
        wait = getattr(call.query, "wait", 0.0) or getattr(call.body, "wait", 0.0)
        try:
            async with asyncio.timeout(self._gateway.limits.answer_seconds + wait):
                return _response(call.request, route, await route.handler(call))
        except TimeoutError as error:
            if isinstance(error, TimedOut):
                raise
            raise TimedOut("the gateway did not finish in time; look whether it took effect") from None

    async def _while_allowed(self, call: Call, parts: AsyncIterable[Any]) -> AsyncIterator[Any]:
        """Pass on what streams as long as the caller's key or token counts."""
        async for part in parts:
            try:
                await self._gateway.authority.recheck(call.request)
            except Unauthenticated:
                return
            yield part

    def _query(self, route: Route, request: Request) -> Any:
        lists = self._lists[route.method]
        given: dict[str, Any] = {}
        for name, text in _pairs(request):
            if name in lists:
                given.setdefault(name, []).append(text)
            elif name in given:
                raise InvalidInput(f"{name} is given twice in the query")
            else:
                given[name] = text
        try:
            return msgspec.convert(given, route.query, strict=False)
        except msgspec.ValidationError as error:
            cause = error.__cause__
            raise InvalidInput(f"the query is not as expected: {cause or error}") from None

    def _not_allowed(self, request: Request) -> Refused:
        allowed = ", ".join(sorted(self.routes))
        return Refused(
            405,
            "method_not_allowed",
            f"{request.method} is not a method of this path",
            f"Use {allowed}.",
            {"Allow": allowed},
        )


def _shown(body: Any) -> Any:
    return None if isinstance(body, bytes) else body


def _response(request: Request, route: Route, answer: Any) -> Response:
    if isinstance(answer, Response):
        return answer
    reply = answer if isinstance(answer, Reply) else Reply(answer, next(iter(route.replies)))
    if reply.body is None and reply.status == 204:
        return Response(None, 204, reply.headers)
    content = reply.body if isinstance(reply.body, bytes) else _encoder.encode(reply.body)
    headers = reply.headers
    if len(content) >= _SMALL:
        headers = {**headers, "Vary": "Accept-Encoding"}
        if _takes_gzip(request.headers.get("accept-encoding", "")):
            headers["Content-Encoding"] = "gzip"
            content = gzip.compress(content, _LEVEL, mtime=0)
    return Response(content, reply.status, headers, reply.media or route.reply_media)


def _takes_gzip(accepted: str) -> bool:
    """Say whether a caller takes gzip; a weight of 0 says that it does not."""
    for each in accepted.lower().split(","):
        coding, _, weight = each.partition(";")
        if coding.strip() == "gzip":
            return not _ZERO.fullmatch(weight.strip())
    return False


def _unquoted(name: str, text: str) -> str:
    try:
        found = unquote_to_bytes(text).decode()
    except UnicodeDecodeError:
        raise InvalidInput(f"{name} in the path is not UTF-8: {text!r}") from None
    # Browsers take `.` and `..` for folders, encoded or not. No name begins with a tilde, so these can be written so.
    return found[1:] if found in ("~.", "~..") else found


def _pairs(request: Request) -> list[tuple[str, str]]:
    """Return what is in the query. Bytes that are no text are refused, as in the path, and not taken for others."""
    try:
        return parse_qsl(request.scope["query_string"].decode("latin-1"), keep_blank_values=True, errors="strict")
    except ValueError:
        raise InvalidInput("the query is not UTF-8") from None


@cache
def _has_queue(query: Any) -> bool:
    """Say whether a query may name the one queue that a request is about."""
    return query is not None and "queue" in query.__struct_fields__


def _lists(query: Any) -> frozenset[str]:
    """Return the fields of a query that may be given more than once."""
    if query is None:
        return frozenset()
    return frozenset(field.encode_name for field in msgspec.structs.fields(query) if _is_list(field.type))


def _is_list(kind: Any) -> bool:
    members = getattr(kind, "__args__", ())
    return get_origin(kind) is list or any(get_origin(member) is list for member in members)


def by_path(routes: Sequence[Route]) -> Mapping[str, list[Route]]:
    """Return routes by their path, in the order of first appearance."""
    found: dict[str, list[Route]] = {}
    for route in routes:
        found.setdefault(route.path, []).append(route)
    return found
