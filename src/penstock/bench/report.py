"""Shows a report: a table on a terminal, plain lines in a pipe, Markdown and JSON in files."""

from collections.abc import Iterable
from pathlib import Path
from statistics import median

import msgspec
from rich.console import Console
from rich.table import Table

from penstock.bench.checks import Verdict, verdicts
from penstock.bench.plan import Ratio, Result
from penstock.bench.run import WRITERS, Report

HEADINGS = ("case", "penstock", "rows", "blob (limit)", "numbered blob", "× rows", "× limit", "× numbered")
_LEGEND = (
    "Writes and reads in thousand messages a second (more is better), disk in bytes a message (less is better): the "
    "median of the rounds, and the lowest and highest in brackets. × is penstock over the other, compared round by "
    "round. Trust the ratios, not the speeds."
)


def show(report: Report, console: Console) -> None:
    """Print a table for a person, or plain lines for a pipe."""
    if not console.is_terminal:
        for line in lines(report):
            console.print(line, soft_wrap=True, markup=False, highlight=False)
        return
    table = Table(caption=_LEGEND, caption_justify="left")
    for position, heading in enumerate(HEADINGS):
        table.add_column(heading, justify="right" if position else "left")
    kind = None
    for result in report.results:
        if kind not in (None, result.case.kind):
            table.add_section()
        kind = result.case.kind
        table.add_row(*cells(result))
    for line in report.environment.lines:
        console.print(line, highlight=False)
    console.print(table)


def show_missed(report: Report, console: Console) -> bool:
    """Print which promises were missed, and say whether all were kept."""
    all_verdicts = list(verdicts(report))
    missed = [verdict for verdict in all_verdicts if not verdict.kept]
    if not missed:
        console.print(f"all {len(all_verdicts)} checks passed", highlight=False)
        return True
    console.print(f"{len(missed)} of {len(all_verdicts)} checks missed:", highlight=False)
    if console.is_terminal:
        table = Table("case", "promise", "measured")
        for verdict in missed:
            table.add_row(verdict.case.title, verdict.promise.says, f"{verdict.ratio:.2f}")
        console.print(table)
    else:
        for verdict in missed:
            console.print(missed_line(verdict), soft_wrap=True, markup=False, highlight=False)
    return False


def lines(report: Report) -> Iterable[str]:
    """Return the report as plain text."""
    yield from report.environment.lines
    rows = [HEADINGS, *map(cells, report.results)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        first, *others = (
            cell.rjust(width) if position else cell.ljust(width)
            for position, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join([first, *others]).rstrip()
    yield _LEGEND


def markdown(report: Report) -> str:
    """Return the report as a page."""
    text = ["# penstock bench log", "", *(f"- {line}" for line in report.environment.lines)]
    text += [f"- {report.rounds} rounds{', quick sizes' if report.quick else ''}", "", _LEGEND, ""]
    text += [_markdown_row(HEADINGS), _markdown_row(["---", *["--:"] * (len(HEADINGS) - 1)])]
    text += [_markdown_row(cells(result)) for result in report.results]
    found = list(verdicts(report))
    missed = [verdict for verdict in found if not verdict.kept]
    text += ["", f"{len(found) - len(missed)} of {len(found)} checks passed.", ""]
    text += [f"- {missed_line(verdict)}" for verdict in missed]
    return "\n".join(text).rstrip() + "\n"


def save(report: Report, folder: Path) -> None:
    """Write log.json and log.md."""
    folder.mkdir(parents=True, exist_ok=True)
    encoded = msgspec.json.format(msgspec.json.encode(report), indent=1)
    (folder / "log.json").write_bytes(encoded + b"\n")
    (folder / "log.md").write_text(markdown(report), encoding="utf-8")


def cells(result: Result) -> tuple[str, ...]:
    """Return a row of the table."""
    scale = 1 if result.case.kind == "disk" else 1000
    speeds = [_speed([sample / scale for sample in result.samples.get(name, [])]) for name in WRITERS]
    return (result.case.title, *speeds, *(_ratio(result.ratio(name)) for name in WRITERS[1:]))


def missed_line(verdict: Verdict) -> str:
    """Return a missed promise as a line."""
    who = "a numbered blob" if verdict.promise.other == "blob" else "the limit itself"
    limit = "" if verdict.limit is None else f" ({who}: {verdict.limit:.2f})"
    return f"missed: {verdict.case.title}: {verdict.ratio:.2f}, but penstock {verdict.promise.says}{limit}"


def _speed(samples: list[float]) -> str:
    if not samples:
        return ""
    low, high = min(samples), max(samples)
    spread = f" ({low:.3g}–{high:.3g})" if len(samples) > 1 else ""
    return f"{median(samples):.3g}{spread}"


def _ratio(ratio: Ratio | None) -> str:
    if ratio is None:
        return ""
    spread = f" ({ratio.low:.2f}–{ratio.high:.2f})" if ratio.low != ratio.high else ""
    return f"{ratio.median:.2f}{spread}"


def _markdown_row(row: Iterable[str]) -> str:
    return f"| {' | '.join(row)} |"
