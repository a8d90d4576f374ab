"""The gateway itself: whether it is alive and ready, and its description."""

from functools import cache
from pathlib import Path

import msgspec

from penstock import __version__
from penstock.errors import NotFound, PenstockError
from penstock.gateway.call import Call, Reply
from penstock.gateway.problems import Refused, public_text

_STATIC = Path(__file__).parent.parent / "static"
_MEDIA = {".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".css": "text/css"}
_PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
}


class Health(msgspec.Struct, frozen=True):
    """That the gateway runs, and its version."""

    status: str
    version: str


async def healthz(call: Call) -> Health:
    """Say that the process is alive; the database does not matter."""
    return Health("alive", __version__)


async def readyz(call: Call) -> Health:
    """Say that the database can be reached and has the schema that this gateway needs."""
    if call.gateway.stopping.is_set():
        raise Refused(503, "stopping", "the gateway is ending", "Send the request to another gateway.")
    try:
        await call.gateway.monitor.ready()
    except PenstockError as error:
        raise Refused(
            503, "not_ready", public_text(error), "Look at the database, then run `penstock doctor`."
        ) from error
    return Health("ready", __version__)


async def openapi(call: Call) -> Reply:
    """Return the OpenAPI description."""
    from penstock.gateway.openapi import description_of_table

    return Reply(description_of_table())


async def docs(call: Call) -> Reply:
    """Return the page that shows the description."""
    return _page("docs.html")


async def docs_file(call: Call) -> Reply:
    """Return a file of that page."""
    return _page(call.path["file"])


def _page(name: str) -> Reply:
    if name not in ("docs.html", "docs.js", "docs.css"):
        raise NotFound(f"there is no file {name!r} here")
    return Reply(_file(name), headers=dict(_PAGE_HEADERS), media=_MEDIA[Path(name).suffix])


@cache
def _file(name: str) -> bytes:
    return (_STATIC / name).read_bytes()
