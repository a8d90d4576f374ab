"""What a handler gets and gives: the parts of a request, typed, and a reply."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from starlette.requests import Request

from penstock.errors import NotFound
from penstock.gateway.protocol import STREAMING
from penstock.gateway.route import Route
from penstock.gateway.scopes import AnyQueue, Scope
from penstock.gateway.sight import Sight

if TYPE_CHECKING:
    from penstock.gateway.gateway import Gateway


@dataclass(slots=True)
class Call:
    """A request to a route. `body` is typed where it came as JSON; else it is bytes, of the type `media`."""

    gateway: "Gateway"
    route: Route
    request: Request
    path: dict[str, str]
    query: Any
    body: Any
    media: str
    # The name of the caller, where the gateway knows it.
    caller: str | None

    async def authorize(self, scope: Scope, queue: str | AnyQueue | None) -> None:
        """Ask whether the caller may do what only the body says."""
        await self.gateway.authority.authorize(self.request, scope, queue)

    async def may(self, scope: Scope, queue: str | None) -> bool:
        """Say whether the caller may do this, for an answer that shows some of it to those who may."""
        caller = await self.gateway.authority.caller_of(self.request)
        return caller.allows(scope, queue)

    async def sight(self) -> Sight:
        """Return what the caller may see of lists."""
        return Sight(await self.gateway.authority.caller_of(self.request), self.route.scope)

    async def show(self, queue: str, missing: str) -> None:
        """Raise NotFound if the caller may not see a queue, just as if there were nothing."""
        if not (await self.sight()).sees(queue):
            raise NotFound(missing)

    @property
    def only_creates(self) -> bool:
        """Whether the caller wants a PUT to create, and to leave alone what is there."""
        return self.request.headers.get("if-none-match", "").strip() == "*"

    def streaming(self) -> None:
        """Say to the connection that the answer is a stream."""
        begin = self.request.scope.get("state", {}).get(STREAMING)
        if begin is not None:
            begin()

    async def disconnected(self) -> None:
        """Wait until the caller is gone; only after the body was read."""
        while (await self.request.receive())["type"] != "http.disconnect":
            pass


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer with a status or headers of its own. Bytes are sent as they are, all else as JSON."""

    body: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    media: str | None = None
