"""From settings to a database that is ready: the address in use, checked and migrated.

An address is a PostgreSQL DSN or, with none given, the embedded server of a home folder. Everything after this file is
the same for both.
"""

import re
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from penstock import sql
from penstock.engine import migrate
from penstock.engine.failures import translate
from penstock.errors import SetupError, Unavailable
from penstock.settings import Settings, without_driver

if TYPE_CHECKING:
    from penstock.embedded import Instance

# Up to the last @: libpq, and people who forget to escape, allow almost anything in a password.
_LOGIN = re.compile(r"(://[^:/?#@]*):(.*)@", re.DOTALL)
_HOW = "Set PENSTOCK_URL=postgresql://user:password@host/database to use a server of your own"
_announced = False


@dataclass
class Address:
    """Where the database is; holds the embedded server up for as long as it is open."""

    settings: Settings
    dsn: str = field(repr=False)
    embedded: "Instance | None" = None
    pooled: bool = False

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
            return psycopg.connect(self.dsn, **self.connect_options())
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
    address = _find(settings)
    try:
        with address.connect() as connection:
            state = migrate.inspect(connection)
            address.pooled = state.pooled
            if check_schema:
                # An empty database is ours to fill, and an embedded one to upgrade; any other has an operator.
                older = (state.schema_version or 0) < sql.version()
                if state.schema_version is None or (older and address.embedded is not None):
                    migrate.migrate(connection)
                else:
                    migrate.require_usable(state)
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
    """Return a DSN that may be shown: without its passwords."""
    shown = _LOGIN.sub(r"\1:***@", without_driver(dsn), count=1)
    if shown.startswith(("http://", "https://")):
        return shown
    try:
        values = conninfo_to_dict(shown)
    except psycopg.ProgrammingError:
        return "(an address that cannot be read)"
    hidden = {name: "***" for name in ("password", "sslpassword") if values.get(name)}
    if "://" in shown and all(values[name] == mask for name, mask in hidden.items()):
        return shown
    return make_conninfo("", **{**values, **hidden})


def unreachable(dsn: str, error: psycopg.Error) -> Exception:
    """Return what to raise when a database cannot be connected to."""
    known = translate(error)
    if known is not None:
        return known
    said = _scrubbed(dsn, " ".join(str(error).split()).rstrip(".?"))
    if "authentication failed" in said or "no password supplied" in said:
        return SetupError(f"{redact(dsn)} refused the login: {said}. Check PENSTOCK_URL.")
    if "does not exist" in said:
        return SetupError(f"{redact(dsn)}: {said}. Create it, or check PENSTOCK_URL.")
    return Unavailable(f"{redact(dsn)} cannot be reached: {said}. Check that it runs, and PENSTOCK_URL.")


def _scrubbed(dsn: str, said: str) -> str:
    """Return words about an address without what may be a piece of its password.

    libpq ends a password at the first @ or /. What comes after it in one that was not escaped is then taken for a host
    or a port, and quoted.
    """
    login = _LOGIN.search(dsn)
    given = [login[2]] if login else []
    try:
        values = conninfo_to_dict(dsn)
        given += [str(values[name]) for name in ("password", "sslpassword") if values.get(name)]
    except psycopg.ProgrammingError:
        pass
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
            f"{redact(url)} is a gateway, which this version cannot speak to yet; give a postgresql://… address"
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
