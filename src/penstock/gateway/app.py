"""The gateway as an ASGI application: the table of routes, and what holds for all of them."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.routing import Route as StarletteRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from penstock.gateway.access.browsers import Browsers
from penstock.gateway.endpoint import Endpoint, by_path
from penstock.gateway.gateway import Gateway
from penstock.gateway.monitoring.requests import Requests
from penstock.gateway.problems import Refused, answer_to
from penstock.gateway.route import Route
from penstock.gateway.table import TABLE


def create_app(gateway: Gateway, table: Sequence[Route] = TABLE) -> Starlette:
    """Return an application that opens its gateway when it starts, and closes it when it ends."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        await gateway.open()
        try:
            yield
        finally:
            await gateway.close()

    app = Starlette(
        routes=[StarletteRoute(path, Endpoint(gateway, routes), name=path) for path, routes in by_path(table).items()],
        lifespan=lifespan,
        middleware=[
            Middleware(Requests, gateway.instruments, gateway.logged),
            Middleware(Browsers, names=gateway.host_names),
            Middleware(RawPath),
        ],
        exception_handlers={404: _no_such_route},
    )
    # Its own redirects name the host that the caller has sent, whatever that is.
    app.router.redirect_slashes = False
    return app


class RawPath:
    """Lets routes see the path as it was sent, so that a name may have a slash in it, written as %2F."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        raw = scope.get("raw_path")
        if raw is not None:
            scope["path"] = raw.decode("latin-1")
        await self._app(scope, receive, send)


async def _no_such_route(request: Request, error: Exception) -> Response:
    path = request.scope["path"]
    # One slash at the end is one too many, and easily typed.
    shorter = path.removesuffix("/")
    if shorter != path and not shorter.startswith("//") and _is_known(request, shorter):
        query = request.scope["query_string"].decode("latin-1")
        return Response(None, 307, {"Location": f"{shorter}?{query}" if query else shorter})
    refused = Refused(404, "no_such_route", f"there is nothing at {request.url.path}", "See /docs for what there is.")
    return answer_to(refused)


def _is_known(request: Request, path: str) -> bool:
    scope = {**request.scope, "path": path, "raw_path": path.encode("latin-1")}
    return any(route.matches(scope)[0] is Match.FULL for route in request.app.routes)
