"""What a page of another origin cannot make a browser do: change something, or reach a gateway without authentication.

A browser on the same machine reaches a gateway on loopback, and may be told by anybody's page to do so. It says from
which page a request that changes something comes (`Origin`, `Sec-Fetch-Site`), and which name it thinks it talks to
(`Host`): a page that has its own name resolved to loopback is told by that. No answer allows another origin to read it.
"""

from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from penstock.gateway.problems import Refused, answer_to
from penstock.gateway.scopes import is_loopback

_SAFE = ("GET", "HEAD", "OPTIONS")
_OURS = ("same-origin", "none")


class Browsers:
    """Refuses requests that another's page made a browser send. `names` are the hosts that may be asked for, or all."""

    def __init__(self, app: ASGIApp, names: frozenset[str] | None = None) -> None:
        self._app = app
        self._names = names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        problem = self._problem(scope["method"], Headers(scope=scope)) if scope["type"] == "http" else None
        if problem is None:
            await self._app(scope, receive, send)
        else:
            await answer_to(problem)(scope, receive, send)

    def _problem(self, method: str, headers: Headers) -> Refused | None:
        hosts = headers.getlist("host")
        host = hosts[0] if len(hosts) == 1 else ""
        if self._names is not None and not self._is_ours(host):
            return Refused(
                421,
                "unknown_host",
                f"this gateway is not known as {host!r:.100}",
                "Ask for localhost, or set up authentication where the gateway is started.",
            )
        if method in _SAFE:
            return None
        site = headers.get("sec-fetch-site")
        origin = headers.get("origin")
        if (site is not None and site not in _OURS) or (origin is not None and not _same(origin, host)):
            return Refused(
                403,
                "foreign_origin",
                "a page of another origin may not change anything here",
                "Send the request from a program, or from the gateway's own page.",
            )
        return None

    def _is_ours(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        return bool(name) and (is_loopback(name) or name in (self._names or ()))


def _same(origin: str, host: str) -> bool:
    try:
        return bool(host) and urlsplit(origin).netloc.lower() == host.lower()
    except ValueError:
        return False
