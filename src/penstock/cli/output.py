"""How results are shown: tables and progress bars on a terminal, tab-separated lines in a pipe, JSON when asked for.

Results go to stdout and remarks to stderr, so that a pipe carries nothing but results.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import click

Record = Mapping[str, Any]
_NARROW = 120
_titles = False


def is_terminal() -> bool:
    """Say whether a person is looking."""
    return sys.stdout.isatty()


def is_narrow() -> bool:
    """Say whether the terminal is too narrow for a table of many columns."""
    from rich.console import Console

    return is_terminal() and Console().width < _NARROW


def begin_with_titles(wanted: bool) -> None:
    """Say whether lists in a pipe begin with a line of their columns' names."""
    global _titles
    _titles = wanted


def remark(text: str) -> None:
    """Tell something that is not part of the result."""
    click.echo(text, err=True)


def show(records: Iterable[Record], columns: Sequence[str], as_json: bool) -> None:
    """Show records: in JSON with all their fields, else the columns."""
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
    """Show one record, a line for each of its fields."""
    if as_json:
        show([record], (), True)
    else:
        show([{"field": name, "value": value} for name, value in record.items()], ("field", "value"), False)


def counted(number: int, noun: str) -> str:
    """Return so many of something: 1 message, 2 messages."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def json_line(record: object) -> bytes:
    """Return a line of JSON."""
    import msgspec

    return msgspec.json.encode(record, enc_hook=str) + b"\n"


@contextmanager
def progress(label: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """Show on a terminal how far something is; the body calls what it is given with each advance."""
    if not is_terminal():
        yield lambda steps: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn(label), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=total)
        yield lambda steps: bar.advance(task, steps)


def _table(records: Iterable[Record], columns: Sequence[str]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    rows = list(records)
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for column in columns:
        # Nothing is cut off: an address that ends in … is of no use. Where it is narrow, texts are folded, numbers not.
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
    """Return text without control characters, which could make a terminal do things."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in "\n\t" else repr(char)[1:-1] for char in text)
