"""Every example of README and docs runs, prints what it says, and every link leads somewhere."""

import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest

from .pages import ROOT, RUNNABLE, SHOWN, Page, pages, read
from .running import Session

PAGES = pages()
EXAMPLES = sorted((ROOT / "examples").rglob("*.py"))
# Those that a page shows in full run with that page.
SHOWN_IN_FULL = {block.marker[1] for page in PAGES for block in page.blocks if block.marker[0] == "file"}
POINTED_TO = [path for path in EXAMPLES if str(path.relative_to(ROOT)) not in SHOWN_IN_FULL]


@pytest.mark.usefixtures("untraced")
@pytest.mark.parametrize("page", [page for page in PAGES if not page.has_no_examples], ids=lambda page: page.name)
def test_every_example_of_the_page_runs(
    page: Page, page_url: str, penstock_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_HOME", str(tmp_path / "home"))
    session = Session(page_url, penstock_server, tmp_path)
    ran = 0
    try:
        for block in page.blocks:
            if block.runs:
                session.run(block)
                ran += 1
        session.finish()
    finally:
        session.close()
    assert ran > 0


@pytest.mark.parametrize("example", POINTED_TO, ids=lambda path: path.name)
def test_every_other_file_of_examples_runs_by_itself(example: Path, page_url: str, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, str(example)], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_file_of_examples_is_in_the_docs() -> None:
    text = "".join(page.text for page in PAGES)
    assert [path.name for path in EXAMPLES if str(path.relative_to(ROOT)) not in text] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_block_drops_out_unseen(page: Page) -> None:
    # Counted here without the parser, so that a fence it does not understand is noticed.
    fences = sum(line.lstrip().startswith("```") for line in page.text.splitlines())
    assert fences == 2 * len(page.blocks)
    assert [block.place for block in page.blocks if block.language not in RUNNABLE | SHOWN] == []
    unexplained = [block.place for block in page.blocks if block.marker[0] == "not run" and not block.marker[1]]
    assert unexplained == []
    assert page.has_no_examples != any(block.runs for block in page.blocks)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Page) -> None:
    broken = []
    for line, target in page.links:
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = unquote(target).partition("#")
        there = (page.path.parent / path).resolve() if path else page.path
        if not there.exists() or (anchor and anchor not in read(there).anchors):
            broken.append(f"{page.name}:{line}: {target}")
    assert broken == []


def test_every_page_is_reached_from_the_readme() -> None:
    reached = {ROOT / "README.md"}
    waiting = list(reached)
    while waiting:
        here = waiting.pop()
        for _, target in read(here).links:
            there = (here.parent / target.partition("#")[0]).resolve()
            if there.suffix == ".md" and there.exists() and there not in reached:
                reached.add(there)
                waiting.append(there)
    assert [page.name for page in PAGES if page.path not in reached] == []
