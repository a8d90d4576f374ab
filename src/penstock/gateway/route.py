"""A route: what is answered where, who may ask, and the types of what goes in and comes out."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.gateway.scopes import Scope

if TYPE_CHECKING:
    from penstock.gateway.call import Call

API = "/api/v2"
JSON = "application/json"
NDJSON = "application/x-ndjson"
BYTES = "application/octet-stream"

Handler = Callable[["Call"], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Route:
    """One row of the table.

    `path` may have names in braces. `query` and `body` are msgspec structs, `replies` the types of the answers by
    status. A handler returns what the first of them is made of, or a `Reply`. What `streams` has no time limit.
    """

    method: str
    path: str
    handler: Handler
    scope: Scope
    summary: str
    query: Any = None
    body: Any = None
    media: tuple[str, ...] = (JSON,)
    replies: Mapping[int, Any] = field(default_factory=lambda: {200: None})
    reply_media: str = JSON
    streams: bool = False
    # Whether the OpenAPI description has it.
    described: bool = True
    # Whether the body says which queues it is about, and the handler asks for each of them; or it names leases, which
    # are secrets of who has them. A route that is about no single queue is otherwise for those who may use all queues.
    in_body: bool = False
    # Whether it is about all queues, and its handler shows each caller those that it may see: see `Call.sight`.
    shows: bool = False
    # Whether its handler writes to the audit log by itself.
    audits: bool = False

    def __post_init__(self) -> None:
        if self.scope is Scope.READ and self.method not in ("GET", "HEAD"):
            raise ValueError(f"{self.method} {self.path} may change something, so its scope cannot be read")

    @property
    def audited(self) -> bool:
        """Whether the endpoint writes an act to the audit log."""
        return self.scope is Scope.ADMIN and self.method not in ("GET", "HEAD") and not self.audits

    @property
    def names(self) -> list[str]:
        """The names in the path."""
        return [part[1:-1] for part in self.path.split("/") if part.startswith("{")]

    @property
    def room(self) -> str:
        """The module of its handler: what the description groups it by."""
        return self.handler.__module__.rpartition(".")[2]
