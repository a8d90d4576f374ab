"""The code uses the words of the glossary: private metaphors that were retired do not come back as names."""

import io
import re
import tokenize
from pathlib import Path

from .pages import ROOT

# A word that was retired, and the term of the glossary that took its place.
RETIRED = {
    "bell": "wake",
    "bells": "wakes",
    "care": "maintenance",
    "crew": "processes",
    "farewell": "stop timeout",
    "fare": "status",
    "fares": "status",
    "hall": "wait group",
    "halls": "wait groups",
    "doorbell": "late wake-up",
    "doorbells": "late wake-ups",
    "foreign": "user connection",
    "flight": "batch, or in_flight",
    "flights": "batches",
    "flown": "in flight",
    "hurried": "short lock wait",
    "hurry": "short lock wait",
    "lot": "push batch",
    "lots": "push batches",
    "parcel": "push batch",
    "parcels": "push batches",
    "tell": "report, heartbeat, send",
    "teller": "reporter",
    "telling": "heartbeat",
    "tells": "reports",
    "told": "reported",
}
_PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_SQL_TEXT = re.compile(r"--[^\n]*|'(?:[^']|'')*'")


def names(path: Path) -> set[tuple[str, int]]:
    """Return the parts of every identifier of a file, with their lines."""
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text("utf-8")).readline)
    found = {(path.stem, 0)} | {(token.string, token.start[0]) for token in tokens if token.type == tokenize.NAME}
    return {(part.lower(), line) for name, line in found for part in parts(name)}


def parts(name: str) -> list[str]:
    """Return the words of an identifier. "In flight" is a term of the glossary, and no part of it is retired."""
    return _PART.findall(re.sub("in_?flight", "", name, flags=re.IGNORECASE))


def test_no_name_in_the_code_is_a_retired_word() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {part} (say {RETIRED[part]})"
        for path in sorted((ROOT / "src").rglob("*.py"))
        for part, line in sorted(names(path))
        if part in RETIRED
    ]
    assert found == []


def test_no_name_in_the_sql_is_a_retired_word() -> None:
    # In SQL only: elsewhere a line is one of text.
    retired = {**RETIRED, "line": "ready list entry"}
    found = []
    for path in sorted((ROOT / "src" / "penstock" / "sql").rglob("*.sql")):
        code = _SQL_TEXT.sub("", path.read_text("utf-8"))
        used = {part.lower() for name in {path.stem, *re.findall(r"\w+", code)} for part in parts(name)}
        found += [f"{path.relative_to(ROOT)}: {part} (say {retired[part]})" for part in used & retired.keys()]
    assert found == []


def test_the_glossary_defines_each_term_once() -> None:
    text = (ROOT / "docs" / "glossary.md").read_text("utf-8")
    terms = re.findall(r"^\| ([^|]+) \| [^|]+ \|$", text, re.MULTILINE)
    terms = [term for term in terms if term not in ("term", "---")]
    assert len(terms) == len(set(terms)) > 50
    assert set(terms).isdisjoint(RETIRED)
