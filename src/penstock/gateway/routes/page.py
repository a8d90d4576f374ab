"""The web page and its files."""

from penstock import ui
from penstock.errors import NotFound
from penstock.gateway.call import Call, Reply


async def page(call: Call) -> Reply:
    """Return the page; its script shows what the address says."""
    return _reply(call, "index.html")


async def file(call: Call) -> Reply:
    """Return a file of the page."""
    return _reply(call, "/".join(call.path.values()))


def _reply(call: Call, name: str) -> Reply:
    found = ui.file(name)
    if found is None:
        raise NotFound(f"there is no file {name!r} of the page")
    headers = {**found.headers, "ETag": found.etag}
    if call.request.headers.get("if-none-match") == found.etag:
        return Reply(b"", 304, headers, found.media)
    return Reply(found.content, headers=headers, media=found.media)
