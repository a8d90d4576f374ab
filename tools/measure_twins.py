"""Measure how much of the synchronous half of penstock is written twice.

Compared are the classes and functions that are written by hand for both halves: those whose names differ only by
`Async` or `async_` (`Watchdog` and `AsyncWatchdog`), and those of the same name in two modules of `MODULES`. The
asynchronous text is made synchronous as the generator does it; a line that both then have is written twice. The share
is of all lines of the synchronous half, generated or not, as Python itself writes them: without comments, blank lines
and line breaks within statements. Imports do not count.

    python tools/measure_twins.py            # print the share of each pair and of all
    python tools/measure_twins.py --check    # fail if it is more than a tenth
"""

import argparse
import ast
import difflib
import sys
from pathlib import Path
from typing import NamedTuple

from generate_sync import MODULES, PACKAGE, sources, synchronous

MOST = 0.1


class Pair(NamedTuple):
    """One thing that is written by hand for both halves."""

    name: str
    synchronous: list[str]
    twice: int


def pairs() -> list[Pair]:
    """Return all classes and functions that are written by hand for both halves."""
    by_rule = {*sources(), *sources().values()}
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        if path not in by_rule:
            written = _definitions(path)
            found += [_pair(path, name, text, written) for name, text in written.items() if _is_async(name)]
    for module, twin in MODULES.items():
        threads = _definitions(_path(twin))
        tasks = _definitions(_path(module))
        found += [_pair(_path(twin), name, tasks[name], threads) for name in threads if name in tasks]
    return [pair for pair in found if pair.synchronous]


def generated() -> list[str]:
    """Return the lines that are generated."""
    return [line for target in sources().values() for line in _lines(target.read_text(encoding="utf-8"))]


def _pair(path: Path, name: str, text: str, written: dict[str, str]) -> Pair:
    twin = name.replace("Async", "").replace("async_", "")
    ours, theirs = _lines(written.get(twin, "")), _lines(synchronous(text))
    blocks = difflib.SequenceMatcher(None, ours, theirs, autojunk=False).get_matching_blocks()
    return Pair(f"{path.relative_to(PACKAGE)}: {twin}", ours, sum(block.size for block in blocks))


def _definitions(path: Path) -> dict[str, str]:
    """Return the text of each class and function at the top of a module."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines(keepends=True)
    return {
        node.name: "".join(lines[node.lineno - 1 : node.end_lineno])
        for node in ast.parse(text).body
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    }


def _is_async(name: str) -> bool:
    return name.lstrip("_").startswith(("Async", "async_"))


def _path(module: str) -> Path:
    return PACKAGE.parent / f"{module.replace('.', '/')}.py"


def _lines(text: str) -> list[str]:
    stripped = (line.strip() for line in ast.unparse(ast.parse(text)).splitlines())
    return [line for line in stripped if line and not line.startswith(("import ", "from "))]


def main() -> int:
    """Print the shares, or check them."""
    parser = argparse.ArgumentParser(description="Measure how much of the synchronous half is written twice.")
    parser.add_argument("--check", action="store_true", help="fail if more than a tenth is")
    check = parser.parse_args().check
    found = pairs()
    by_script = len(generated())
    total = by_script + sum(len(pair.synchronous) for pair in found)
    twice = sum(pair.twice for pair in found)
    for pair in found:
        print(f"{pair.twice:5} of {len(pair.synchronous):5} lines  {pair.name}")
    print(f"{0:5} of {by_script:5} lines  generated")
    print(f"{twice:5} of {total:5} lines  in all: {twice / total:.1%} is written twice")
    return 1 if check and twice > MOST * total else 0


if __name__ == "__main__":
    sys.exit(main())
