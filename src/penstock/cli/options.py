"""What commands share: the options that say which penstock is meant, examples in the help, and how values are read."""

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from penstock.cli import output
from penstock.cli.completing import TYPES
from penstock.errors import InvalidInput

if TYPE_CHECKING:
    from penstock.client.client import Client
    from penstock.settings import Settings

_AGO = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


@dataclass
class Given:
    """Which penstock the command line asks for; what it leaves open comes from the environment."""

    url: str | None = None
    home: str | None = None
    timeout: float | None = None

    def settings(self) -> "Settings":
        """Return the settings that hold for this command."""
        from penstock import settings

        return settings.resolve(vars(self))

    def client(self) -> "Client":
        """Open a client."""
        from penstock.client.client import Client

        return Client(self.url, home=self.home, timeout=self.timeout)


def _keep(context: click.Context, option: click.Parameter, value: Any) -> None:
    if value is not None:
        setattr(context.ensure_object(Given), option.name or "", value)


CONNECTION: tuple[click.Option, ...] = (
    click.Option(
        ["--url"],
        metavar="URL",
        expose_value=False,
        callback=_keep,
        help="postgresql://… of the database; without it, and without PENSTOCK_URL, the embedded server is used.",
    ),
    click.Option(
        ["--home"],
        metavar="FOLDER",
        expose_value=False,
        callback=_keep,
        help="Folder of the embedded server (PENSTOCK_HOME).",
    ),
    click.Option(
        ["--timeout"],
        metavar="SECONDS",
        type=click.FloatRange(min=0, min_open=True),
        expose_value=False,
        callback=_keep,
        help="How long one call may take (PENSTOCK_TIMEOUT, else 30).",
    ),
)


class Command(click.Command):
    """A command with examples in its help, which takes the connection options after its name, too."""

    def __init__(self, *args: Any, examples: Sequence[str], connects: bool = True, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.examples = tuple(examples)
        self.epilog = epilog(examples)
        self._more = CONNECTION if connects else ()
        for parameter in self.params:
            if parameter.type is click.STRING and parameter.name in TYPES:
                parameter.type = TYPES[parameter.name]

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return its own parameters and the connection options."""
        return [*super().get_params(ctx), *self._more]


def epilog(examples: Sequence[str]) -> str:
    """Return examples as they stand at the end of a help text."""
    return "\n".join(["\b", "Examples:", *(f"  {example}" for example in examples)])


def json_option(function: Any) -> Any:
    """Add the options that say how a list is printed."""
    titles = click.option(
        "--titles",
        is_flag=True,
        expose_value=False,
        callback=lambda context, option, value: output.begin_with_titles(value),
        help="In a pipe, begin with a line of the columns' names.",
    )
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, one object per line.")(titles(function))


yes_option = click.option("--yes", is_flag=True, help="Do not ask.")


def moment(context: click.Context, option: click.Parameter, value: str | None) -> datetime | None:
    """Read a time: ISO 8601, local if it has no zone, or how long ago."""
    if value is None:
        return None
    ago = _AGO.fullmatch(value.strip())
    try:
        if ago:
            return datetime.now(UTC) - timedelta(**{_UNITS[ago[2]]: float(ago[1])})
        return datetime.fromisoformat(value.strip()).astimezone(UTC)
    except (ValueError, OverflowError):
        raise click.BadParameter(
            f"{value!r} is no time; say 2026-01-31T12:00:00Z, or 10m, 2h, 3d for so long ago"
        ) from None


def later(context: click.Context, option: click.Parameter, value: str | None) -> datetime | None:
    """Read a time to come: ISO 8601, local if it has no zone."""
    if value is None:
        return None
    try:
        return datetime.fromisoformat(value.strip()).astimezone(UTC)
    except (ValueError, OverflowError):
        raise click.BadParameter(
            f"{value!r} is no time; say 2026-01-31T12:00:00Z, or use --delay for so long from now"
        ) from None


def duration(context: click.Context, option: click.Parameter, value: str | None) -> float | None:
    """Read how long: seconds, or 10m, 2h, 3d."""
    if value is None:
        return None
    span = _AGO.fullmatch(value.strip())
    try:
        return timedelta(**{_UNITS[span[2]]: float(span[1])}).total_seconds() if span else float(value)
    except (ValueError, OverflowError):
        raise click.BadParameter(f"{value!r} is no length of time; say 90 for seconds, or 10m, 2h, 3d") from None


def named(context: click.Context, option: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """Read texts of the form name=value."""
    pairs = {}
    for value in values:
        name, equals, text = value.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{value!r} is not of the form name=value")
        pairs[name] = text
    return pairs


def subscription(context: click.Context, option: click.Parameter, value: str) -> str | datetime:
    """Read where a new group begins: all, new, or a time."""
    if value in ("all", "new"):
        return value
    return moment(context, option, value) or value


def position(context: click.Context, option: click.Parameter, value: str) -> int | str | datetime:
    """Read where a group goes: earliest, latest, an offset, or a time."""
    if value in ("earliest", "latest"):
        return value
    if value.isdecimal():
        return int(value)
    return moment(context, option, value) or value


def settings_from(texts: Mapping[str, str], resets: Iterable[str], reserved: Sequence[str]) -> dict[str, Any]:
    """Return settings by name; a value is JSON, or a text where it is not, and None for one that is set back.

    What is reserved is an option of its own, and no setting.
    """
    import msgspec

    settings: dict[str, Any] = {}
    for name, text in texts.items():
        try:
            settings[name] = msgspec.json.decode(text)
        except msgspec.DecodeError:
            settings[name] = text
    settings.update(dict.fromkeys(resets))
    for name in settings:
        if name in reserved:
            raise InvalidInput(f"{name} is not a setting; see --help")
    return settings


def confirm(what: str, yes: bool) -> None:
    """Ask before something is done that cannot be taken back."""
    if yes:
        return
    if sys.stdin is None or not sys.stdin.isatty():
        raise click.UsageError(f"to {what}, say --yes")
    click.confirm(f"{what[0].upper()}{what[1:]}?", abort=True, err=True)
