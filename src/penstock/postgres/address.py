"""From settings to a database that is ready: the address in use, checked and migrated.

An address is a PostgreSQL DSN or, with none given, the embedded server of a home folder. Everything after this file is
the same for both.
"""

import re
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from penstock import sql, valkey
from penstock.errors import PenstockError, SetupError, Unavailable
from penstock.postgres import migrate
from penstock.postgres.failures import translate
from penstock.postgres.wire import Connection
from penstock.settings import Settings, without_driver

if TYPE_CHECKING:
    from penstock.embedded import Instance

# Up to the last @: libpq, and people who forget to escape, allow almost anything in a password.
_LOGIN = re.compile(r"(://[^:/?#@]*):(.*)@", re.DOTALL)
_HIDDEN = "***"
_UNREADABLE = "(an address that cannot be read)"
# The parameters of libpq that hold no secret: names, numbers, switches, and paths of files that hold one.
_SHOWN = {
    "application_name",
    "channel_binding",
    "client_encoding",
    "connect_timeout",
    "fallback_application_name",
    "gssdelegation",
    "gssencmode",
    "keepalives",
    "keepalives_count",
    "keepalives_idle",
    "keepalives_interval",
    "krbsrvname",
    "load_balance_hosts",
    "max_protocol_version",
    "min_protocol_version",
    "passfile",
    "replication",
    "require_auth",
    "requirepeer",
    "service",
    "ssl_max_protocol_version",
    "ssl_min_protocol_version",
    "sslcert",
    "sslcertmode",
    "sslcompression",
    "sslcrl",
    "sslcrldir",
    "sslkey",
    "sslmode",
    "sslnegotiation",
    "sslrootcert",
    "sslsni",
    "target_session_attrs",
    "tcp_user_timeout",
}
# Where a piece of a password lands that was not escaped; what has its usual form is shown.
_SHAPES = {name: re.compile(r"[\w.:,/%~ -]*") for name in ("host", "hostaddr")} | {
    "port": re.compile(r"[\d,]*"),
    "dbname": re.compile(r"[\w.$+ -]*"),
}
_PORTS = _SHAPES["port"]
_HOW = "Set PENSTOCK_URL=postgresql://user:password@host/database to use a server of your own"
_announced = False


@dataclass
class Address:
    """Where the database is; holds the embedded server up for as long as it is open."""

    settings: Settings
    dsn: str = field(repr=False)
    embedded: "Instance | None" = None
    pooled: bool = False
    # What distinguishes the database from others that use the same Valkey; known where there is one.
    database: str = ""

    @property
    def has_valkey(self) -> bool:
        """Whether hints can go through Valkey."""
        return bool(self.database)

    def connect_options(self) -> dict[str, Any]:
        """Return what every connection of penstock is opened with."""
        return {
            "autocommit": True,
            "connect_timeout": max(2, round(self.settings.connect_timeout)),
            # A pooler in transaction mode gives each transaction another server, where nothing is prepared.
            "prepare_threshold": None if self.pooled else 5,
            "fallback_application_name": "penstock",
        }

    def connect(self) -> psycopg.Connection[Any]:
        """Open a connection of its own."""
        try:
            return Connection.connect(self.dsn, **self.connect_options())
        except psycopg.OperationalError as error:
            # What libpq says may quote the address: only words that are safe go on.
            raise unreachable(self.dsn, error) from (error if _scrubbed(self.dsn, str(error)) == str(error) else None)

    def ensure(self) -> bool:
        """See to it that an embedded server runs; say whether the address changed by that."""
        if self.embedded is None:
            return False
        before, self.dsn = self.dsn, self.embedded.ensure()
        return before != self.dsn

    def close(self) -> None:
        """Let go of the embedded server, which stops when nobody uses it."""
        if self.embedded is not None:
            self.embedded.detach()


def open_address(settings: Settings, *, check_schema: bool = True) -> Address:
    """Find the database, start it if it is ours, and see that its schema is the one we need."""
    uses_valkey = valkey.find(settings) is not None
    address = _find(settings)
    try:
        with address.connect() as connection:
            if not check_schema:
                address.pooled = migrate.is_pooled(connection)
            else:
                state = migrate.inspect(connection)
                address.pooled = state.pooled
                # An empty database is ours to fill, and an embedded one to upgrade; any other has an operator.
                older = (state.schema_version or 0) < sql.version()
                if state.schema_version is None or (older and address.embedded is not None):
                    migrate.migrate(connection)
                else:
                    migrate.require_usable(state)
                if uses_valkey:
                    address.database = migrate.identity(connection)
    except psycopg.OperationalError as error:
        address.close()
        raise unreachable(address.dsn, error) from error
    except BaseException:
        address.close()
        raise
    return address


def with_database(dsn: str, name: str) -> str:
    """Return the address of another database of the same server, in the form that was given."""
    if "://" in dsn:
        parts = urlsplit(dsn)
        return parts._replace(path=f"/{name}").geturl()
    return make_conninfo("", **{**conninfo_to_dict(dsn), "dbname": name})


def redact(dsn: str) -> str:
    """Return a DSN that may be shown: what is not known to be harmless is hidden.

    Nothing of the given text is copied: what is shown was taken apart before, as libpq does it.
    """
    given = without_driver(dsn)
    scheme, separator, rest = given.partition("://")
    if separator and scheme in ("http", "https"):
        return f"{scheme}://{_gateway(rest)}"
    try:
        values = conninfo_to_dict(given)
    except psycopg.ProgrammingError:
        return _UNREADABLE
    if not _PORTS.fullmatch(str(values.get("port") or "")):
        # A piece of a password that was not escaped; then the other parts may be pieces of it, too.
        return _UNREADABLE
    shown = {name: _harmless(name, str(value)) for name, value in values.items() if value is not None}
    return _as_url(scheme, shown) if separator and scheme in ("postgres", "postgresql") else make_conninfo("", **shown)


def _harmless(name: str, value: str) -> str:
    """Return the value of a parameter as it may be shown."""
    if name == "user":
        user, colon, _ = value.partition(":")
        return f"{user}:{_HIDDEN}" if colon else user
    shape = _SHAPES.get(name)
    return value if name in _SHOWN or (shape is not None and shape.fullmatch(value)) else _HIDDEN


def _as_url(scheme: str, shown: dict[str, str]) -> str:
    rest = dict(shown)
    user, password = rest.pop("user", ""), rest.pop("password", None)
    login = _quoted(user) + ("" if password is None else f":{_HIDDEN}")
    ports = rest.pop("port", "").split(",")
    hosts = [f"[{host}]" if ":" in host else _quoted(host) for host in rest.pop("host", "").split(",")]
    # One port holds for all hosts, and is then written once, after the last.
    ports = ports if len(ports) == len(hosts) else [""] * (len(hosts) - 1) + ports[-1:]
    where = ",".join(host + (f":{port}" if port else "") for host, port in zip(hosts, ports, strict=True))
    database = f"/{_quoted(rest.pop('dbname'))}" if "dbname" in rest else ""
    query = "&".join(f"{name}={_quoted(value)}" for name, value in rest.items())
    return f"{scheme}://{login}{'@' if login else ''}{where}{database}{'?' if query else ''}{query}"


def _quoted(text: str) -> str:
    return quote(text, safe="*:")


def _gateway(rest: str) -> str:
    """Return the host of a gateway's address; the login, the path and the parameters may all hold a token."""
    authority = re.split("[/?#]", rest, maxsplit=1)[0]
    path = rest[len(authority) :]
    _, at, host = authority.rpartition("@")
    if "@" in path or not re.fullmatch(r"[\w.:\[\]-]*", host):
        # A password that was not escaped: nobody knows where it ends.
        return _HIDDEN
    return (f"{_HIDDEN}@" if at else "") + host + (f"/{_HIDDEN}" if path.strip("/") else path)


def unreachable(dsn: str, error: psycopg.Error) -> Exception:
    """Return what to raise when a database cannot be connected to."""
    known = translate(error)
    if known is not None:
        return known
    # libpq has no SQLSTATE for a connection that was refused, and its words are all there is.
    said = _scrubbed(dsn, " ".join(str(error).split()).rstrip(".?"))
    pgconn = getattr(error, "pgconn", None)
    found: PenstockError
    if "authentication failed" in said or (pgconn is not None and pgconn.needs_password):
        found = SetupError(f"{redact(dsn)} refused the login: {said}. Check PENSTOCK_URL.")
    elif "does not exist" in said:
        found = SetupError(f"{redact(dsn)}: {said}. Create it, or check PENSTOCK_URL.")
    else:
        found = Unavailable(f"{redact(dsn)} cannot be reached: {said}. Check that it runs, and PENSTOCK_URL.")
    found.public = "the database cannot be reached"
    return found


def _scrubbed(dsn: str, said: str) -> str:
    """Return words about an address without what may be a piece of its password.

    libpq ends a password at the first @ or /. What comes after it in one that was not escaped is then taken for a host
    or a port, and quoted.
    """
    login = _LOGIN.search(dsn)
    given = [login[2]] if login else []
    try:
        values = {name: str(value) for name, value in conninfo_to_dict(dsn).items() if value is not None}
    except psycopg.ProgrammingError:
        values = {}
    # The names of options are what an error about them is about.
    given += re.findall(r"=(\S+)", values.pop("options", ""))
    given += [
        value.partition(":")[2] if name == "user" else value
        for name, value in values.items()
        if _harmless(name, value) != value
    ]
    pieces = {piece for text in given for piece in (text, unquote(text), *re.split(r"[^\w.-]+", unquote(text)))}
    for piece in sorted(pieces, key=len, reverse=True):
        if len(piece) > 2:
            said = said.replace(piece, "***")
    return said


def _find(settings: Settings) -> Address:
    url = settings.url
    if url is None:
        return _embedded(settings)
    if url.startswith(("http://", "https://")):
        raise SetupError(
            f"{redact(url)} is a gateway, and this needs the database itself; give a postgresql://… address"
        )
    try:
        conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        # What libpq says of it quotes it.
        raise SetupError(
            "the address cannot be read: it must be postgresql://user:password@host:port/database?name=value, with "
            "parameters that libpq knows, and with characters such as @ / ? # % of a password percent-encoded; check "
            "PENSTOCK_URL"
        ) from None
    return Address(settings, url)


def _embedded(settings: Settings) -> Address:
    if settings.embedded == "never":
        raise SetupError(f"PENSTOCK_URL is not set, and PENSTOCK_EMBEDDED=never forbids the embedded server. {_HOW}.")
    from penstock import embedded

    instance = embedded.attach(settings.home)
    _announce(settings)
    return Address(settings, instance.dsn, instance)


def _announce(settings: Settings) -> None:
    """Say once which server this is, where nobody has said that it is meant."""
    global _announced
    if _announced or not settings.is_default("home"):
        return
    _announced = True
    sys.stderr.write(
        f"penstock: PENSTOCK_URL is not set, so this is the embedded PostgreSQL in {settings.home}. {_HOW}, or "
        f"PENSTOCK_HOME={settings.home} if this one is meant.\n"
    )
