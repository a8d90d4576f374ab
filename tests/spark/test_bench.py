"""`penstock bench spark` runs, finds figures for all it promises to measure, and leaves nothing behind."""

import json
from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from penstock.bench.cli import bench


@pytest.mark.usefixtures("spark")
def test_a_quick_run_of_spark_without_jdbc_judges_all_other_promises_and_drops_its_database(
    penstock_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It gets the session that all tests share, which goes on.
    monkeypatch.setattr(SparkSession, "stop", lambda session: None)
    before = databases(penstock_dsn)
    done = CliRunner().invoke(
        bench, ["spark", "--quick", "--no-jdbc", "--json", "--url", penstock_dsn, "--save", str(tmp_path)]
    )

    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert json.loads((tmp_path / "spark.json").read_text()) == report
    assert {case: set(contenders) for case, contenders in report["samples"].items()} == {
        "read": {"penstock", "limit"},
        "write": {"penstock", "floor", "limit"},
        "read many partitions": {"ten", "many"},
        "write many partitions": {"ten", "many", "shuffled", "new"},
        "empty epoch": {"penstock", "limit"},
        "epoch": {"penstock", "limit"},
    }
    for contenders in report["samples"].values():
        for times in contenders.values():
            assert times
            assert all(time > 0 for time in times)
    text = (tmp_path / "spark.md").read_text()
    assert sum(line.startswith(("kept", "MISSED")) for line in text.splitlines()) == 6
    assert databases(penstock_dsn) == before


def databases(dsn: str) -> set[str]:
    """Return which databases of benchmarks there are."""
    with psycopg.connect(dsn) as connection:
        rows = connection.execute("SELECT datname FROM pg_database WHERE datname LIKE 'penstock_bench%'").fetchall()
    return {name for (name,) in rows}
