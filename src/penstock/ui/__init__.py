"""The web page: static files and which addresses show it. There is no build step: the files are served as they are."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path

_STATIC = Path(__file__).parent / "static"
_MEDIA = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
# The script of the page picks what to show by the address.
PAGES = (
    "/",
    "/queue-metrics",
    "/queues",
    "/queue",
    "/messages",
    "/message",
    "/dead-letters",
    "/consumers",
    "/schedules",
    "/flows",
    "/server",
)
# No inline script, no inline style, no other origin: what a message holds could not run even if it became markup.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
}
# A new version of penstock brings new files under the same names. The page asks for them below its version, and what
# was asked for so is kept: then opening it again is one request.
_CHANGING = "no-cache"
_KEPT = "public, max-age=31536000, immutable"


@dataclass(frozen=True)
class File:
    """A file of the page."""

    content: bytes
    media: str
    etag: str
    headers: Mapping[str, str]


def file(name: str) -> File | None:
    """Return a file by its path below /ui, with or without the version in front of it; None if there is none."""
    begin, _, rest = name.partition("/")
    if begin.startswith("-"):
        return _file(rest, _KEPT if begin == version() else _CHANGING)
    return _file(name, _CHANGING)


@cache
def version() -> str:
    """Return what tells these files from those of another version."""
    every = sha256()
    for name in sorted(_names()):
        every.update(name.encode() + (_STATIC / name).read_bytes())
    return f"-{every.hexdigest()[:12]}"


@cache
def _file(name: str, kept: str) -> File | None:
    path = _STATIC / name
    if name not in _names():
        return None
    content = path.read_bytes()
    if path.suffix == ".html":
        content = content.replace(b"<!-- modules -->", _modules()).replace(b'"/ui/', f'"/ui/{version()}/'.encode())
    etag = f'"{sha256(content).hexdigest()[:20]}"'
    return File(content, _MEDIA[path.suffix], etag, {**HEADERS, "Cache-Control": kept})


def _modules() -> bytes:
    """Return links to all modules, so that a browser asks for them at once and not as it finds each in another."""
    # These are large, and loaded where something is drawn.
    late = ("vendor/uplot.js", "vendor/dagre.js")
    names = sorted(name for name in _names() if "/" in name and name.endswith(".js") and name not in late)
    return "\n".join(f'<link rel="modulepreload" href="/ui/{name}">' for name in names).encode()


@cache
def _names() -> frozenset[str]:
    """List the files that are served; nothing else is, whatever a request says."""
    return frozenset(
        path.relative_to(_STATIC).as_posix() for path in _STATIC.rglob("*") if path.suffix in _MEDIA and path.is_file()
    )
