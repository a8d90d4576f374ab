"""Generate the synchronous half of penstock from the asynchronous one.

Every `async_NAME.py` in `src/penstock` is a source, and `NAME.py` beside it is generated: `await` and `async` are
removed, names are replaced by the tables below, and ruff formats the result. Generated files are committed.

    python tools/generate_sync.py            # write what has changed
    python tools/generate_sync.py --check    # write nothing; fail if a generated file is out of date

A line that only one of the two has carries a mark:

    await self.open()  # async only          # removes the whole statement that begins on this line
    # sync only: self._lock.acquire()        # becomes code in the generated file

What differs by nature (threads and tasks, timers) is written by hand, in two modules with the same names in them;
`MODULES` says which stands for which.
"""

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "penstock"

# `AsyncClient` becomes `Client` and `async_operating` becomes `operating`; these follow no rule.
NAMES = {
    "AbstractAsyncContextManager": "AbstractContextManager",
    "StopAsyncIteration": "StopIteration",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
    "aclosing": "closing",
    "anext": "next",
    "asynccontextmanager": "contextmanager",
}

# Modules that are written by hand for each half.
MODULES = {
    "penstock.consuming.tasks": "penstock.consuming.threads",
    "penstock.consuming.worker_tasks": "penstock.consuming.worker_threads",
    "penstock.http.streams": "penstock.http.sockets",
}

# `asyncio.to_thread(f, x)` becomes `f(x)`. What else is used of asyncio must be here, or be marked.
ASYNCIO = {
    "asyncio.Event": "threading.Event",
    "asyncio.Lock": "threading.Lock",
    "asyncio.sleep": "time.sleep",
}

# Words of docstrings, comments and messages; the first that fits is used.
TEXTS = {
    "Await a function for each message, in `concurrency` tasks": (
        "Call a function for each message, in `concurrency` threads"
    ),
    "One that is not a coroutine function is called in a thread": (
        "A coroutine function is awaited, in one event loop for all threads"
    ),
    "Safe to share between tasks": "Safe to share between threads",
    "psycopg, SQLAlchemy, asyncpg": "psycopg, psycopg2, SQLAlchemy, Django",
    "async with": "with",
    "an asynchronous": "a synchronous",
    "asynchronous": "synchronous",
    "Asynchronous": "Synchronous",
}

HEADER = (
    "# Generated from {source} by tools/generate_sync.py. Do not edit: change the source and run `make generate`.\n"
)

# Imports change, and some constructs have a shorter form without `await`; ruff knows both.
FIXED_BY_RUFF = "F401,I001,C416,RUF100,SIM117,UP028"

# Since Python 3.12 the text of an f-string is a token of its own.
_TEXTUAL = ("STRING", "FSTRING_MIDDLE", "COMMENT")
_ASYNC_ONLY = re.compile(r"#.*\basync only\s*$")
_SYNC_ONLY = re.compile(r"^(\s*)# sync only: (.*)$")
_TEXT = re.compile("|".join(rf"\b{re.escape(text)}\b" for text in TEXTS))


class Edit(NamedTuple):
    """A piece of the source, from one (line, column) to another, and what replaces it."""

    start: tuple[int, int]
    end: tuple[int, int]
    text: str


class Statement(NamedTuple):
    """The lines of a statement: its first, the last of its head (`if …:`), and its last."""

    first: int
    head: int
    last: int


def sources() -> dict[Path, Path]:
    """Return all sources, and what is generated from each."""
    found = sorted(PACKAGE.rglob("async_*.py"))
    return {source: source.with_name(source.name.removeprefix("async_")) for source in found}


def generate(source: Path) -> str:
    """Return the synchronous text of a source."""
    text = synchronous(source.read_text(encoding="utf-8"))
    _refuse_leftovers(text, source.name)
    return _tidied(HEADER.format(source=source.name) + text, source.with_name(source.name.removeprefix("async_")))


def synchronous(text: str) -> str:
    """Return the synchronous text, neither sorted nor formatted."""
    text = _with_modules(_unmarked(text))
    return _applied(text, [*_structural(text), *_lexical(text)])


def _refuse_leftovers(text: str, name: str) -> None:
    """Refuse what is still asynchronous."""
    for token in _tokens(text):
        # An import that is not used is removed later.
        if token.type == tokenize.NAME and "async" in token.string.lower() and token.line != "import asyncio\n":
            line = token.line.strip()
            raise SystemExit(f"{name}: mark it `# async only`, or extend the tables of generate_sync.py: {line}")


def _unmarked(text: str) -> str:
    """Remove what is marked `async only`, with the comment above it, and uncomment what is marked `sync only`."""
    lines = text.splitlines(keepends=True)
    marked = {token.start[0] for token in _tokens(text) if _is_comment(token) and _ASYNC_ONLY.search(token.string)}
    removed: set[int] = set()
    statements = _statements(text)
    for number in marked:
        # Of those that begin or whose head ends here the longest; else it is one line of something, like a parameter.
        fitting = [each for each in statements if number in (each.first, each.head)]
        whole = max(fitting, key=lambda each: each.last - each.first, default=Statement(number, number, number))
        removed.update(range(whole.first, whole.last + 1))
        above = whole.first - 1
        while lines[above - 1].lstrip().startswith("#") and not _SYNC_ONLY.match(lines[above - 1]):
            removed.add(above)
            above -= 1
    kept = [line for number, line in enumerate(lines, 1) if number not in removed]
    return "".join(_SYNC_ONLY.sub(r"\1\2", line) for line in kept)


def _statements(text: str) -> list[Statement]:
    """Return all statements and except clauses."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.stmt | ast.ExceptHandler):
            last = node.end_lineno or node.lineno
            body = getattr(node, "body", None)
            first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", []))])
            found.append(Statement(first, body[0].lineno - 1 if body else last, last))
    return found


def _with_modules(text: str) -> str:
    for module, twin in MODULES.items():
        text = re.sub(rf"\b{re.escape(module)}\b", twin, text)
    present = set(re.findall(r"^import (\w+)$", text, re.MULTILINE))
    # Those that are not used are removed later.
    added = "".join(f"import {name}\n" for name in ("threading", "time") if name not in present)
    return re.sub(r"^import asyncio\n", f"import asyncio\n{added}", text, count=1, flags=re.MULTILINE)


def _structural(text: str) -> list[Edit]:
    """Return the edits for which a name is not enough."""
    lines = text.splitlines()

    def at(line: int | None, column: int | None) -> tuple[int, int]:
        # The parser counts bytes, and the tokenizer characters.
        assert line is not None  # noqa: S101
        return line, len(lines[line - 1].encode()[:column].decode())

    def start(node: ast.expr) -> tuple[int, int]:
        return at(node.lineno, node.col_offset)

    def end(node: ast.expr) -> tuple[int, int]:
        return at(node.end_lineno, node.end_col_offset)

    edits = []
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Subscript(value=ast.Name(id="Awaitable"), slice=inner):
                edits += [Edit(start(node), start(inner), ""), Edit(end(inner), end(node), "")]
            case ast.Attribute(value=ast.Await() as inner) | ast.Subscript(value=ast.Await() as inner):
                # `(await x)[0]` needs its parentheses, and `x[0]` does not.
                (line, before), (last, after) = start(inner), end(inner)
                edits += [Edit((line, before - 1), (line, before), ""), Edit((last, after), (last, after + 1), "")]
            case ast.Call(func=ast.Attribute(ast.Name(id="asyncio"), "to_thread"), args=[called, *rest]):
                edits.append(Edit(start(node), start(called), ""))
                edits.append(Edit(end(called), start(rest[0]) if rest else end(node), "(" if rest else "()"))
            case ast.Attribute() if (twin := ASYNCIO.get(ast.unparse(node))) is not None:
                edits.append(Edit(start(node), end(node), twin))
    return edits


def _lexical(text: str) -> list[Edit]:
    """Return the edits of single words: keywords, names, and texts."""
    edits = []
    tokens = _tokens(text)
    for token, following in pairwise(tokens):
        if token.type == tokenize.NAME and token.string in ("async", "await"):
            edits.append(Edit(token.start, following.start, ""))
        elif token.type == tokenize.NAME:
            edits.append(Edit(token.start, token.end, _renamed(token.string)))
        elif tokenize.tok_name[token.type] in _TEXTUAL:
            edits.append(Edit(token.start, token.end, _reworded(token.string)))
    return [edit for edit in edits if edit.text != _between(text, edit)]


def _renamed(name: str) -> str:
    if name in NAMES:
        return NAMES[name]
    return re.sub(r"^(_*)(?:Async(?=[A-Z])|async_)", r"\1", name)


def _reworded(text: str) -> str:
    text = re.sub(r"\bAsync(?=[A-Z])", "", text)
    return _TEXT.sub(lambda found: TEXTS[found[0]], text)


def _applied(text: str, edits: list[Edit]) -> str:
    """Return the text with all edits made; one that lies within another is left out."""
    lines = text.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    spans = sorted((starts[e.start[0] - 1] + e.start[1], -(starts[e.end[0] - 1] + e.end[1]), e.text) for e in edits)
    pieces, done = [], 0
    for begin, negative_end, replacement in spans:
        if begin >= done:
            pieces += [text[done:begin], replacement]
            done = -negative_end
    return "".join([*pieces, text[done:]])


def _between(text: str, edit: Edit) -> str | None:
    if edit.start[0] != edit.end[0]:
        return None
    return text.splitlines()[edit.start[0] - 1][edit.start[1] : edit.end[1]]


def _tokens(text: str) -> list[tokenize.TokenInfo]:
    return list(tokenize.generate_tokens(io.StringIO(text).readline))


def _is_comment(token: tokenize.TokenInfo) -> bool:
    return token.type == tokenize.COMMENT


def _tidied(text: str, target: Path) -> str:
    """Let ruff remove imports that are no longer used, sort the others, and format."""
    ruff = str(Path(sys.executable).with_name("ruff"))
    fix = [ruff, "check", "--fix", "--unsafe-fixes", "--fixable", FIXED_BY_RUFF, "--exit-zero", "--quiet"]
    for command in (fix, [ruff, "format", "--quiet"]):
        text = subprocess.run(
            [*command, "--stdin-filename", str(target), "-"],
            input=text,
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
        ).stdout
    return text


def main() -> int:
    """Generate, or check."""
    parser = argparse.ArgumentParser(description="Generate the synchronous half of penstock from the asynchronous one.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a generated file is out of date")
    check = parser.parse_args().check
    stale = []
    for source, target in sources().items():
        text = generate(source)
        if not target.exists() or target.read_text(encoding="utf-8") != text:
            stale.append(target.relative_to(ROOT))
            if not check:
                target.write_text(text, encoding="utf-8")
    for path in stale:
        print(f"{path} is out of date: run `make generate`" if check else f"wrote {path}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
