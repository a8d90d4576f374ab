"""What commands share: options, examples in the help, and how values are parsed."""

import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from penstock.cli import output
from penstock.cli.completing import TYPES
from penstock.cli.connection import CONNECTION
from penstock.errors import InvalidInput

_AGO = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


class Command(click.Command):
    """A command with examples in its help that also takes the connection options after its name."""

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
    """Return examples as the end of a help text."""
    return "\n".join(["\b", "Examples:", *(f"  {example}" for example in examples)])


def json_option(function: Any) -> Any:
    """Add the options for how a list is printed."""
    titles = click.option(
        "--titles",
        is_flag=True,
        expose_value=False,
        callback=lambda context, option, value: output.begin_with_titles(value),
        help="Print a header line with the column names, in a pipe.",
    )
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, one object per line.")(titles(function))


def message_options(function: Any) -> Any:
    """Add the options for how messages are printed."""
    as_json = click.option(
        "--json",
        "form",
        flag_value="json",
        help="Print envelopes, one JSON object per line: queue, partition, offset, id, timestamp, key, headers, and "
        "the value as value (JSON, or null), value_text (other text) or value_base64 (other bytes).",
    )
    raw = click.option("--raw", "form", flag_value="raw", help="Print the raw bytes without separators.")
    return as_json(raw(function))


def group_options(mode: str, begins: str) -> Callable[[Any], Any]:
    """Add the options of a new group, with their help: its mode, and where it starts."""
    chosen = click.option(
        "--mode", type=click.Choice(["ordered", "shared"]), default="ordered", show_default=True, help=mode
    )
    started = click.option(
        "--subscription",
        "begins",
        default="all",
        show_default=True,
        metavar="all|new|TIME",
        callback=subscription,
        help=begins,
    )
    return lambda function: chosen(started(function))


def spark_options(function: Any) -> Any:
    """Add the options that select a Spark."""
    for option in (
        click.option("--conf", multiple=True, metavar="KEY=VALUE", help="Set a Spark option; may be repeated."),
        click.option("--remote", metavar="URL", help="Connect to a Spark Connect server, sc://host:15002."),
        click.option(
            "--master", metavar="MASTER", help="Set Spark's master, such as spark://host:7077; default: local."
        ),
    ):
        function = option(function)
    return function


def spark_conf(master: str | None, remote: str | None, conf: Iterable[str]) -> dict[str, str]:
    """Return Spark's options by name, and refuse two Sparks at once."""
    if master and remote:
        raise click.UsageError("give --master or --remote, not both")
    return dict(setting.partition("=")[::2] for setting in conf)


yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
group_option = click.option("--group", help="Select this group only.")


def moment(context: click.Context, option: click.Parameter, value: str | None) -> datetime | None:
    """Parse a time: ISO 8601 (local without a zone), or a duration ago."""
    if value is None:
        return None
    ago = _AGO.fullmatch(value.strip())
    try:
        if ago:
            return datetime.now(UTC) - timedelta(**{_UNITS[ago[2]]: float(ago[1])})
        return datetime.fromisoformat(value.strip()).astimezone(UTC)
    except (ValueError, OverflowError):
        raise click.BadParameter(
            f"{value!r} is not a time; use ISO 8601 such as 2026-01-31T12:00:00Z, or 10m, 2h, 3d for a time ago"
        ) from None


def later(context: click.Context, option: click.Parameter, value: str | None) -> datetime | None:
    """Parse a time in the future: ISO 8601 (local without a zone)."""
    if value is None:
        return None
    try:
        return datetime.fromisoformat(value.strip()).astimezone(UTC)
    except (ValueError, OverflowError):
        raise click.BadParameter(
            f"{value!r} is not a time; use ISO 8601 such as 2026-01-31T12:00:00Z, or --delay for a time from now"
        ) from None


def duration(context: click.Context, option: click.Parameter, value: str | None) -> float | None:
    """Parse a duration: seconds, or 10m, 2h, 3d."""
    if value is None:
        return None
    span = _AGO.fullmatch(value.strip())
    try:
        return timedelta(**{_UNITS[span[2]]: float(span[1])}).total_seconds() if span else float(value)
    except (ValueError, OverflowError):
        raise click.BadParameter(f"{value!r} is not a duration; use seconds such as 90, or 10m, 2h, 3d") from None


def named(context: click.Context, option: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """Parse pairs of the form name=value."""
    pairs = {}
    for value in values:
        name, equals, text = value.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{value!r} is not of the form NAME=VALUE")
        pairs[name] = text
    return pairs


def subscription(context: click.Context, option: click.Parameter, value: str) -> str | datetime:
    """Parse where a new group begins: all, new, or a time."""
    if value in ("all", "new"):
        return value
    return moment(context, option, value) or value


def position(context: click.Context, option: click.Parameter, value: str) -> int | str | datetime:
    """Parse a position: earliest, latest, an offset, or a time."""
    if value in ("earliest", "latest"):
        return value
    if value.isdecimal():
        return int(value)
    return moment(context, option, value) or value


def settings_from(texts: Mapping[str, str], resets: Iterable[str], reserved: Sequence[str]) -> dict[str, Any]:
    """Return settings by name: a value is parsed as JSON, otherwise taken as text; a reset setting is None.

    `reserved` are names that have their own option.
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
            raise InvalidInput(f"{name} is not a setting; it has its own option or argument (see --help)")
    return settings


def confirm(what: str, yes: bool) -> None:
    """Ask for confirmation of what cannot be undone."""
    if yes:
        return
    if sys.stdin is None or not sys.stdin.isatty():
        raise click.UsageError(f"to {what} without a terminal, give --yes")
    click.confirm(f"{what[0].upper()}{what[1:]}?", abort=True, err=True)
