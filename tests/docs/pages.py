"""The documentation as data: its pages, the fenced blocks in them, and the links between them."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
RUNNABLE = {"python", "sql", "console", "shell"}
# What readers look at and nobody runs.
SHOWN = {"js", "text", "mermaid", "ini"}
_FENCE = re.compile(r"^(`{3,})(\w*)\s*$")
_MARKER = re.compile(r"^<!-- (not run|no examples|file|pytest)(?:: (.+?))? -->$")
_LINK = re.compile(r"(?<!\!)\[[^\]]+\]\(([^)\s]+)\)")
_INLINE_CODE = re.compile(r"`[^`]*`")


@dataclass(frozen=True)
class Block:
    """One fenced block. `marker` is the comment right above it, such as ('not run', 'needs a managed server')."""

    page: Path
    line: int
    language: str
    text: str
    marker: tuple[str, str]

    @property
    def place(self) -> str:
        """Where it is, as editors understand it."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def runs_elsewhere(self) -> bool:
        """Whether a test of its own runs it."""
        return self.marker == ("not run", "a test of its own runs it")

    @property
    def runs(self) -> bool:
        """Whether it is to be run."""
        return self.language in RUNNABLE and self.marker[0] != "not run"


@dataclass(frozen=True)
class Page:
    """One page."""

    path: Path
    text: str
    blocks: tuple[Block, ...]
    prose: tuple[tuple[int, str], ...]

    @property
    def name(self) -> str:
        """Its path in the project."""
        return str(self.path.relative_to(ROOT))

    @property
    def has_no_examples(self) -> bool:
        """Whether it says of itself that there is nothing in it to run."""
        return any(match[1] == "no examples" for _, line in self.prose if (match := _MARKER.match(line)))

    @property
    def anchors(self) -> set[str]:
        """The names of its headings, as GitHub makes them."""
        found: dict[str, int] = {}
        anchors = set()
        for _, line in self.prose:
            if line.startswith("#"):
                slug = re.sub(r"[^\w\- ]", "", line.lstrip("#").strip().lower()).replace(" ", "-")
                count = found[slug] = found.get(slug, -1) + 1
                anchors.add(f"{slug}-{count}" if count else slug)
        return anchors

    @property
    def links(self) -> list[tuple[int, str]]:
        """The targets of its links, with their lines."""
        return [
            (number, target)
            for number, line in self.prose
            for target in _LINK.findall(_INLINE_CODE.sub("`code`", line))
        ]


def pages() -> list[Page]:
    """Return every page of the documentation."""
    return [
        read(path)
        for path in (
            ROOT / "README.md",
            ROOT / "CHANGELOG.md",
            ROOT / "CONTRIBUTING.md",
            ROOT / "SECURITY.md",
            *sorted((ROOT / "docs").rglob("*.md")),
        )
    ]


def read(path: Path) -> Page:
    """Take a page apart."""
    text = path.read_text("utf-8")
    blocks: list[Block] = []
    prose: list[tuple[int, str]] = []
    marker = ("", "")
    opened: tuple[int, str, str] | None = None
    lines: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        fence = _FENCE.match(line)
        if opened is not None:
            if fence and fence[1] == opened[1] and not fence[2]:
                blocks.append(Block(path, opened[0], opened[2], "\n".join(lines) + "\n", marker))
                opened, marker, lines = None, ("", ""), []
            else:
                lines.append(line)
        elif fence:
            opened = (number, fence[1], fence[2])
        else:
            prose.append((number, line))
            if found := _MARKER.match(line):
                marker = (found[1], found[2] or "")
            elif line.strip():
                marker = ("", "")
    assert opened is None, f"{path}: the block that begins at line {opened and opened[0]} does not end"
    return Page(path, text, tuple(blocks), tuple(prose))
