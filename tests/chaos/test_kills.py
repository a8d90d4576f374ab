"""Producers and consumers of all kinds, while clients, maintenance and the server are killed all the time.

`make chaos MINUTES=10` does the same for longer. What fails here says its seed; `make chaos SEED=…` repeats its faults.
"""

from pathlib import Path

import pytest

from .running import Report, run

SECONDS = 12.0
SEED = 2026


@pytest.fixture
def report(tmp_path: Path) -> Report:
    """What came of a short run."""
    return run(SEED, SECONDS, tmp_path / "notes", print)


def test_nothing_is_lost_or_out_of_order_though_anybody_may_be_killed(report: Report) -> None:
    assert report.wrong == [], f"{report}; make chaos SEED={SEED} repeats it"
    assert report.pushed > 500
    assert min(report.killed[whom] for whom in ("client", "server", "maintenance")) > 0
