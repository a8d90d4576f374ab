"""The one settings object.

Every setting has a flag or an argument, a `PENSTOCK_*` environment variable and a default, in that order of
precedence. `penstock config` prints what came of it, so a value always knows where it came from.
"""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from penstock.errors import SetupError

_DRIVER = re.compile(r"(postgres(?:ql)?)\+\w+(?=://)")


def default_home() -> Path:
    """Return where embedded services live when `PENSTOCK_HOME` is not set.

    Root's own home is closed to the unprivileged user that PostgreSQL runs as, so root uses /var/lib.
    """
    if os.name == "posix" and os.geteuid() == 0:
        return Path("/var/lib/penstock")
    base = os.environ.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local" / "share") / "penstock"


def without_driver(url: str) -> str:
    """Return an address as libpq takes it: SQLAlchemy's have the name of a driver in the scheme."""
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
    """What a setting is called, what it means, and how its text is read."""

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
        "postgresql://… of the database; unset means the embedded server",
        without_driver,
        lambda: None,
    ),
    Option("home", "folder of the embedded services", lambda t: Path(t).expanduser(), default_home),
    Option(
        "embedded",
        "auto: without a url, the embedded server is used; never: that is an error",
        _embedded,
        lambda: "auto",
    ),
    Option("timeout", "seconds that one call may take", _seconds, lambda: 30.0),
    Option("connect_timeout", "seconds to wait for a connection", _seconds, lambda: 10.0),
    Option("pool_size", "connections that one client may hold", _count, lambda: 8),
    Option("push_batching", "on: concurrent pushes of an AsyncClient share a call", _switch, lambda: True),
    Option(
        "pop_batching", "on: concurrent pops, acks and renewals of an AsyncClient share a call", _switch, lambda: True
    ),
    Option("pending_check", "on: idle consumers ask has_pending_messages before they pop", _switch, lambda: True),
    Option("notify", "on: pushes hint to waiting consumers of other processes with NOTIFY", _switch, lambda: False),
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
    timeout: float
    connect_timeout: float
    pool_size: int
    push_batching: bool
    pop_batching: bool
    pending_check: bool
    notify: bool
    origins: tuple[Setting, ...]

    def is_default(self, name: str) -> bool:
        """Say whether nobody has set a setting."""
        return any(setting.option.name == name and setting.source == "default" for setting in self.origins)


def resolve(arguments: Mapping[str, object] | None = None, environ: Mapping[str, str] | None = None) -> Settings:
    """Return the settings that hold: arguments that are not None, then the environment, then defaults."""
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
        raise SetupError(f"{place}={text!r} cannot be used: {error}. It is: {option.help}.") from None
