"""The settings of a client or command.

Every setting has an argument or flag, a `PENSTOCK_*` environment variable and a default, in that order of precedence.
Each value remembers its source, which `penstock config` prints.
"""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from penstock.errors import SetupError

_DRIVER = re.compile(r"(postgres(?:ql)?)\+\w+(?=://)")


def default_home() -> Path:
    """Return the folder of embedded services when `PENSTOCK_HOME` is not set.

    For root it is in /var/lib: the unprivileged user that PostgreSQL runs as cannot enter root's home.
    """
    if os.name == "posix" and os.geteuid() == 0:
        return Path("/var/lib/penstock")
    base = os.environ.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local" / "share") / "penstock"


def without_driver(url: str) -> str:
    """Return an address without the driver name that SQLAlchemy has in the scheme and libpq refuses."""
    return _DRIVER.sub(r"\1", url.strip(), count=1) if _DRIVER.match(url.strip()) else url


def _embedded(text: str) -> str:
    if text not in ("auto", "never"):
        raise ValueError("must be auto or never")
    return text


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError("must be a number of seconds above 0")
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError("must be a whole number above 0")
    return value


def _switch(text: str) -> bool:
    value = {"on": True, "true": True, "1": True, "off": False, "false": False, "0": False}.get(text.lower())
    if value is None:
        raise ValueError("must be on or off")
    return value


@dataclass(frozen=True)
class Option:
    """The definition of a setting: its name, meaning, parser and default."""

    name: str
    help: str
    parse: Callable[[str], object]
    default: Callable[[], object]

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return f"PENSTOCK_{self.name.upper()}"


OPTIONS = (
    Option(
        "url",
        "address of the database, postgresql://…; unset: the embedded server",
        without_driver,
        lambda: None,
    ),
    Option("home", "folder of the embedded services", lambda t: Path(t).expanduser(), default_home),
    Option(
        "embedded",
        "auto: use the embedded server if no url is set; never: raise an error instead",
        _embedded,
        lambda: "auto",
    ),
    Option(
        "valkey_url",
        "address of Valkey, valkey://…, or none; unset: the embedded one beside an embedded server, else none",
        str.strip,
        lambda: None,
    ),
    Option("timeout", "limit for one call, in seconds", _seconds, lambda: 30.0),
    Option("connect_timeout", "seconds to wait for a connection", _seconds, lambda: 10.0),
    Option("pool_size", "maximum number of connections of a client", _count, lambda: 8),
    Option("push_batching", "on: concurrent pushes of an AsyncClient share a call", _switch, lambda: True),
    Option(
        "pop_batching", "on: concurrent pops, acks and renewals of an AsyncClient share a call", _switch, lambda: True
    ),
    Option("pending_check", "on: idle consumers call has_pending_messages before they pop", _switch, lambda: True),
    Option(
        "notify",
        "on: pushes notify waiting consumers of other processes, through Valkey or with NOTIFY; unset: unless there is "
        "no Valkey, and a pooler in between",
        _switch,
        lambda: None,
    ),
    Option("metrics", "on: a client reports what it pushes and handles, and how it fares", _switch, lambda: True),
    Option(
        "tracing",
        "on: pushes and handlers are OpenTelemetry spans, joined through message headers; needs penstock[otel]",
        _switch,
        lambda: False,
    ),
)


@dataclass(frozen=True)
class Setting:
    """One effective value and its source: `argument`, an environment variable's name, or `default`."""

    option: Option
    # An address has a password in it.
    value: object = field(repr=False)
    source: str


@dataclass(frozen=True)
class Settings:
    """The effective settings of one client or command."""

    url: str | None = field(repr=False)
    home: Path
    embedded: str
    valkey_url: str | None = field(repr=False)
    timeout: float
    connect_timeout: float
    pool_size: int
    push_batching: bool
    pop_batching: bool
    pending_check: bool
    notify: bool | None
    metrics: bool
    tracing: bool
    origins: tuple[Setting, ...]

    def is_default(self, name: str) -> bool:
        """Return whether a setting has its default value because nobody set it."""
        return any(setting.option.name == name and setting.source == "default" for setting in self.origins)


def resolve(arguments: Mapping[str, object] | None = None, environ: Mapping[str, str] | None = None) -> Settings:
    """Return the effective settings: arguments that are not None, then the environment, then defaults."""
    given = arguments or {}
    environment = os.environ if environ is None else environ
    origins = tuple(_resolve(option, given, environment) for option in OPTIONS)
    values = {setting.option.name: setting.value for setting in origins}
    return Settings(**values, origins=origins)  # type: ignore[arg-type]


def _resolve(option: Option, given: Mapping[str, object], environ: Mapping[str, str]) -> Setting:
    argument = given.get(option.name)
    if argument is not None:
        return Setting(option, _parse(option, str(argument), f"argument {option.name}"), "argument")
    text = environ.get(option.variable)
    if text:
        return Setting(option, _parse(option, text, option.variable), option.variable)
    return Setting(option, option.default(), "default")


def _parse(option: Option, text: str, place: str) -> object:
    try:
        return option.parse(text)
    except ValueError as error:
        raise SetupError(f"{place}={text!r} is invalid: {error} ({option.help})") from None
