"""A report of `penstock bench consume` as text and as files, and what it says of the targets."""

from collections.abc import Iterator
from pathlib import Path
from statistics import median

import msgspec

from penstock.bench.consume.breakdown import Breakdown
from penstock.bench.consume.plan import CONSUMERS, PUSHERS, TARGETS, Result
from penstock.bench.consume.run import Report
from penstock.bench.groups.report import Verdict
from penstock.bench.plan import Ratio

_LEGEND = (
    "messages a second, the median of the rounds; × is penstock over the other one, the median of the ratios within "
    "each round (lowest–highest)"
)


def verdicts(report: Report) -> list[Verdict]:
    """Judge a report by the targets."""
    found = []
    for target in TARGETS:
        for result in report.results:
            ratio = result.ratio(target.other, of=target.of) if target.applies(result.case) else None
            if ratio is not None:
                promise = f"{result.case.title}: {target.of} ≥ {target.bound:g} × {target.other}"
                found.append(Verdict(promise, ratio.median, ratio.median >= target.bound))
    return found


def lines(report: Report) -> Iterator[str]:
    """The report as text."""
    yield from report.environment.lines
    yield f"{report.rounds} rounds; before: {report.before or 'not measured'}"
    yield ""
    yield from _pushing(report)
    yield ""
    yield from _consuming(report)
    yield ""
    yield _LEGEND
    yield from report.remarks
    yield ""
    yield from spent(report.breakdown)
    yield ""
    for verdict in verdicts(report):
        yield f"{'kept  ' if verdict.kept else 'MISSED'}  {verdict.promise}: {verdict.measured:.2f}"


def spent(one: Breakdown) -> Iterator[str]:
    """Where the time of one take goes, as text."""
    yield "one consumer, 8 partitions, single messages; median µs of a call:"
    yield f"  a statement that does nothing {one.nothing_us:6.0f}"
    yield f"  a commit's wait for the disk  {one.flush_us:6.0f}"
    for name, durable, unflushed in (
        ("pop", one.pop_us, one.pop_unflushed_us),
        ("ack", one.ack_us, one.ack_unflushed_us),
    ):
        yield f"  {name:<29} {durable:6.0f}   without waiting for the disk {unflushed:6.0f}"
    for each in one.functions:
        yield (
            f"  {each.name:<29} {each.total_us:6.0f}   of its own {each.self_us:6.0f}   called {each.calls:.2f} times "
            "a message"
        )


def save(report: Report, folder: Path) -> None:
    """Write consume.json and consume.md."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "consume.json").write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")
    text = "\n".join(["# penstock bench consume", "", "```", *lines(report), "```", ""])
    (folder / "consume.md").write_text(text, encoding="utf-8")


def _pushing(report: Report) -> Iterator[str]:
    results = [result for result in report.results if result.case.take == 0]
    return _table(results, PUSHERS)


def _consuming(report: Report) -> Iterator[str]:
    results = [result for result in report.results if result.case.take > 0]
    return _table(results, CONSUMERS)


def _table(results: list[Result], contenders: tuple[str, ...]) -> Iterator[str]:
    taking_part = [name for name in contenders if any(name in result.samples for result in results)]
    others = [name for name in taking_part if name != "penstock"]
    rows = [["", *taking_part, *(f"× {name}" for name in others)]]
    for result in results:
        speeds = [f"{median(result.samples[name]):,.0f}" if name in result.samples else "" for name in taking_part]
        rows.append([result.case.title, *speeds, *(_ratio(result.ratio(name)) for name in others)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *cells in rows:
        padded = (cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))
        yield "  ".join([first.ljust(widths[0]), *padded]).rstrip()


def _ratio(ratio: Ratio | None) -> str:
    return "" if ratio is None else f"{ratio.median:.2f} ({ratio.low:.2f}–{ratio.high:.2f})"
