"""Decides about requests: who calls, whether it may, and whether this gateway takes changes at all."""

from starlette.requests import Request

from penstock.errors import ReadOnlyServer, Unauthenticated
from penstock.gateway.access.callers import ANYBODY, Caller
from penstock.gateway.access.keyring import KeyRing
from penstock.gateway.access.tokens import Tokens
from penstock.gateway.scopes import AnyQueue, Scope, is_loopback

COOKIE = "penstock_session"
_CALLER = "penstock.caller"
_SAFE = ("GET", "HEAD")


class Doorkeeper:
    """Lets in those who have a key or a token; without either, everybody on this machine and nobody else."""

    def __init__(self, keys: KeyRing | None = None, tokens: Tokens | None = None, *, read_only: bool = False) -> None:
        self.keys = keys
        self.tokens = tokens
        self.read_only = read_only

    @property
    def open(self) -> bool:
        """Whether it lets in callers whom it does not know."""
        return self.keys is None and self.tokens is None

    async def authorize(self, request: Request, scope: Scope, queue: str | AnyQueue | None) -> str | None:
        """Return the name of the caller, if it has one; raises Unauthenticated, Forbidden or RateLimited."""
        if scope is Scope.NONE:
            return None
        caller = await self.caller_of(request)
        if self.read_only and (request.method not in _SAFE or scope in (Scope.PUSH, Scope.POP, Scope.USE)):
            raise ReadOnlyServer("this gateway is read-only: it takes no pushes, no pops and no other changes")
        caller.require(scope, queue)
        return None if caller is ANYBODY else caller.name

    async def caller_of(self, request: Request) -> Caller:
        """Return who calls, asked once for a request; raises Unauthenticated or RateLimited."""
        known: Caller | None = request.scope.get(_CALLER)
        if known is None:
            known = await self._authenticate(request)
            request.scope[_CALLER] = known
            known.count_request()
        return known

    async def recheck(self, request: Request) -> None:
        """See that who began a long answer is still let in; raises Unauthenticated. It counts as no request."""
        if not self.open and _CALLER in request.scope:
            await self._authenticate(request)

    async def _authenticate(self, request: Request) -> Caller:
        if self.open:
            if request.client is not None and not is_loopback(request.client.host):
                raise Unauthenticated("this gateway has no authentication and serves callers of its own machine only")
            return ANYBODY
        given = request.headers.getlist("authorization")
        if len(given) > 1:
            raise Unauthenticated("the request has more than one Authorization header")
        if given:
            return await self.by_credential(_bearer(given[0]))
        token = request.cookies.get(COOKIE)
        if token and self.keys is not None:
            return await self.keys.by_session(token)
        raise Unauthenticated("this gateway wants to know who calls")

    async def by_credential(self, text: str) -> Caller:
        """Return who has an API key or a token."""
        if self.keys is not None and (text.startswith("pstk_") or self.tokens is None):
            return await self.keys.by_key(text)
        if self.tokens is not None:
            return await self.tokens.by_token(text)
        raise Unauthenticated("this gateway wants to know who calls")


def _bearer(header: str) -> str:
    scheme, _, credential = header.strip().partition(" ")
    if scheme.lower() != "bearer" or not credential.strip():
        raise Unauthenticated("the Authorization header is not of the form `Bearer …`")
    return credential.strip()
