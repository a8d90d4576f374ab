"""No client is needed: the example for JavaScript runs with nothing but fetch."""

import shutil
import subprocess
from pathlib import Path

import pytest

from gateways import RunningGateway

ROOT = Path(__file__).parents[3]


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node 18 or later")
def test_the_example_for_javascript_pushes_and_takes(http: RunningGateway) -> None:
    done = subprocess.run(
        ["node", str(ROOT / "examples" / "http" / "orders.mjs"), f"{http.url}/api/v2"],
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.returncode == 0, done.stderr
    assert "{ id: 1 }" in done.stdout


def test_the_page_shows_the_example_as_it_is() -> None:
    page = (ROOT / "docs" / "howto" / "http.md").read_text("utf-8")
    code = (ROOT / "examples" / "http" / "orders.mjs").read_text("utf-8").partition("\n")[2]

    assert code in page
