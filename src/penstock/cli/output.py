"""How results are printed: tables and progress bars on a terminal, tab-separated lines in a pipe, JSON on request.

Results go to stdout, remarks to stderr, so a pipe carries only results.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from penstock.broker.messages import StoredMessage

Record = Mapping[str, Any]
_NARROW = 120
_titles = False


def is_terminal() -> bool:
    """Return whether stdout is a terminal."""
    return sys.stdout.isatty()


def is_narrow() -> bool:
    """Return whether the terminal is too narrow for a table of many columns."""
    from rich.console import Console

    return is_terminal() and Console().width < _NARROW


def begin_with_titles(wanted: bool) -> None:
    """Set whether lists in a pipe begin with a line of column names."""
    global _titles
    _titles = wanted


def remark(text: str) -> None:
    """Print something that is not part of the result."""
    click.echo(text, err=True)


def show(records: Iterable[Record], columns: Sequence[str], as_json: bool) -> None:
    """Print records: all fields as JSON, otherwise these columns."""
    if as_json:
        for record in records:
            sys.stdout.buffer.write(json_line(record))
    elif is_terminal():
        _table(records, columns)
    else:
        if _titles:
            click.echo("\t".join(columns))
        for record in records:
            click.echo("\t".join(_plain(record[column]) for column in columns))


def show_one(record: Record, as_json: bool) -> None:
    """Print one record, one line per field."""
    if as_json:
        show([record], (), True)
    else:
        show([{"field": name, "value": value} for name, value in record.items()], ("field", "value"), False)


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: 1 message, 2 messages."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def json_line(record: object) -> bytes:
    """Return a line of JSON."""
    import msgspec

    return msgspec.json.encode(record, enc_hook=str) + b"\n"


@contextmanager
def progress(label: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on a terminal; the body calls the function it gets with each step."""
    if not is_terminal():
        yield lambda steps: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn(label), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=total)
        yield lambda steps: bar.advance(task, steps)


def partition_progress() -> AbstractContextManager[Callable[[int], None]]:
    """Show a progress bar for a pass over all partitions."""
    return progress("partitions")


def show_settings(settings: dict[str, Any], config: dict[str, Any] | None = None) -> None:
    """Print settings; with a configuration, also which of them were set."""
    records = [
        {"setting": name, "value": value, "source": "set" if name in (config or ()) else "default"}
        for name, value in sorted(settings.items())
    ]
    show(records, ("setting", "value") if config is None else ("setting", "value", "source"), False)


def message_format(form: str | None) -> "Callable[[StoredMessage], bytes]":
    """Return the function that prints a message: as its raw bytes, as an envelope, or as a line of text."""
    if form == "raw":
        return lambda message: message.value or b""
    from penstock.operations import envelopes

    if form == "json":
        return envelopes.write
    if is_terminal():
        return lambda message: printable(envelopes.text_of(message.value)).encode() + b"\n"
    return lambda message: envelopes.text_of(message.value).encode() + b"\n"


def _table(records: Iterable[Record], columns: Sequence[str]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    rows = list(records)
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for column in columns:
        # Nothing is cut off: an address that ends in … is useless. Text is folded where it is narrow, numbers are not.
        numbers = any(record[column] is not None for record in rows) and all(
            isinstance(record[column], int | float | None) for record in rows
        )
        table.add_column(column, overflow="fold", no_wrap=numbers, justify="right" if numbers else "left")
    for record in rows:
        table.add_row(*(Text(_plain(record[column])) for column in columns))
    Console().print(table)


def _plain(value: object) -> str:
    """Return a value as one cell of one line."""
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case datetime():
            return value.isoformat(sep=" ", timespec="seconds") if is_terminal() else value.isoformat()
        case dict() | list():
            return json_line(value).decode().strip()
        case _:
            return printable(str(value)).replace("\t", " ").replace("\n", " ")


def printable(text: str) -> str:
    """Return text with control characters escaped: a terminal would obey them."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in "\n\t" else repr(char)[1:-1] for char in text)
