"""The benchmark runs on a real database, finds figures for all it promises to measure, and leaves nothing behind.

How fast anything is depends on the machine and its other work: no test here compares two times.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock.bench.consume import plan as consume_plan
from penstock.bench.consume import report as consume_report
from penstock.bench.consume.run import run as run_consume
from penstock.bench.gateway import report as gateway_report
from penstock.bench.jobs import report as jobs_report
from penstock.bench.latency import report as latency_report
from penstock.errors import PenstockError
from valkeys import valkey_server

ROOT = Path(__file__).parents[2]
SMALL = consume_plan.QUICK._replace(
    takes=(1, 100), pushers=(2,), rounds=1, seconds=0.05, messages={1: 400, 100: 8_000}, calls=20
)


def bench(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "penstock.bench", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=170, check=False)


def titles(report: dict[str, Any], **wanted: Any) -> list[dict[str, Any]]:
    return [
        result
        for result in report["results"]
        if all(result["case"].get(name) == value for name, value in wanted.items())
    ]


def test_a_quick_run_measures_everything_and_leaves_nothing_behind(penstock_dsn: str, tmp_path: Path) -> None:
    done = bench("log", "--quick", "--json", "--url", penstock_dsn, "--save", str(tmp_path))

    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["environment"]["server"]
    for data in ("json", "random"):
        for batch in (1, 100):
            (write,) = titles(report, kind="write", data=data, batch=batch)
            assert set(write["samples"]) == {"penstock", "rows", "blob", "numbered"}
        (disk,) = titles(report, kind="disk", data=data)
        # A message of 100 bytes takes its bytes, or fewer when compressed, and not ten times as many.
        assert all(10 < size < 1000 for (size,) in disk["samples"].values())
    for target in ("python", "arrow"):
        for readers in (1, 2):
            assert len(titles(report, kind="read", target=target, workers=readers, batch=100)) == 2
            assert len(titles(report, kind="read", target=target, workers=readers, batch=1)) == 2
    for result in report["results"]:
        rounds = 1 if result["case"]["kind"] == "disk" else report["rounds"]
        for samples in result["samples"].values():
            assert len(samples) == rounds
            assert all(sample > 0 for sample in samples)

    assert json.loads((tmp_path / "log.json").read_text()) == report
    assert "× rows" in (tmp_path / "log.md").read_text()
    with psycopg.connect(penstock_dsn) as connection:
        left = connection.execute(
            "SELECT count(*) FROM penstock.queues UNION ALL"
            " SELECT count(*) FROM pg_namespace WHERE nspname = 'penstock_bench'"
        ).fetchall()
    assert left == [(0,), (0,)]


def test_a_database_that_cannot_be_reached_is_an_error_without_a_traceback() -> None:
    done = bench("log", "--quick", "--url", "postgresql://127.0.0.1:1/nowhere")

    assert done.returncode == 1
    assert done.stderr.startswith("Error: ")


def test_a_quick_run_of_batching_judges_every_promise(penstock_dsn: str, tmp_path: Path) -> None:
    done = bench("batching", "--quick", "--json", "--url", penstock_dsn, "--save", str(tmp_path))

    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert json.loads((tmp_path / "batching.json").read_text()) == report
    text = (tmp_path / "batching.md").read_text()
    assert sum(line.startswith(("kept", "MISSED")) for line in text.splitlines()) == 5
    # What is counted, and not timed, is the same on every machine.
    assert min(report["round_trips"]["unbatched"]) >= report["pops"]
    assert max(report["round_trips"]["batched"]) <= 3
    assert report["idle"]["calls"] / report["idle"]["seconds"] <= 6


@pytest.mark.skipif(not (ROOT / ".venv").exists(), reason="needs a checkout with a .venv of its own")
def test_a_run_of_consume_measures_every_contender_and_judges_every_target_that_it_can(
    penstock_dsn: str, tmp_path: Path
) -> None:
    before = databases(penstock_dsn)
    report = run_consume(penstock_dsn, SMALL, True, ROOT, lambda step: None)

    pushing, *consuming = report.results
    assert set(pushing.samples) == {"penstock", "before", "gapless", "insert"}
    assert len(consuming) == 4
    for result in consuming:
        assert set(result.samples) - {"relaxed", "relaxed + prefetch"} == {
            "penstock",
            "prefetch",
            "pop + ack",
            "before",
            "plain",
        }
        assert all(rate > 0 for rates in result.samples.values() for rate in rates)
    assert {"ack_and_pop", "ack_claims"} <= {function.name for function in report.breakdown.functions}
    # Those of relaxed acks, with prefetch and without, only where groups have that setting.
    judged = 2 * 8 + 2 + (0 if report.remarks else 2 * 2)
    assert len(consume_report.verdicts(report)) == judged
    consume_report.save(report, tmp_path)
    assert json.loads((tmp_path / "consume.json").read_text())["quick"] is True
    text = (tmp_path / "consume.md").read_text()
    assert sum(line.startswith(("kept", "MISSED")) for line in text.splitlines()) == judged
    assert databases(penstock_dsn) == before


def test_a_checkout_without_an_environment_or_with_that_of_another_one_is_refused(
    penstock_dsn: str, tmp_path: Path
) -> None:
    before = databases(penstock_dsn)
    with pytest.raises(PenstockError, match=r"has no \.venv with a Python"):
        run_consume(penstock_dsn, SMALL, True, tmp_path, lambda step: None)
    (tmp_path / ".venv").symlink_to(sys.prefix)
    with pytest.raises(PenstockError, match="not from that folder"):
        run_consume(penstock_dsn, SMALL, True, tmp_path, lambda step: None)
    assert databases(penstock_dsn) == before


def test_a_run_of_consume_that_is_interrupted_drops_its_databases_and_ends_its_workers(penstock_dsn: str) -> None:
    before = databases(penstock_dsn)
    command = [sys.executable, "-m", "penstock.bench", "consume", "--quick", "--url", penstock_dsn]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as run:
        assert run.stderr is not None
        assert "where the time goes" in run.stderr.readline()
        # As a terminal does: to the workers, too.
        os.killpg(run.pid, signal.SIGINT)
        left = run.stderr.read()
        run.wait(60)

    assert run.returncode != 0
    assert "Traceback" not in left
    with pytest.raises(ProcessLookupError):
        os.killpg(run.pid, 0)
    assert databases(penstock_dsn) == before


def test_a_run_of_latency_measures_every_contender_at_every_rate(penstock_dsn: str, tmp_path: Path) -> None:
    before = databases(penstock_dsn)
    with valkey_server() as server:
        plan = latency_report.Plan(((50, 0.2),), 1)
        report = latency_report.run(penstock_dsn, plan, lambda step: None, server.url())

    (result,) = report.results
    assert set(result.samples) == {
        *("round trip", "one way", "plain queue"),
        *("default", "notify on", "notify off", "valkey"),
    }
    for (turn,) in result.samples.values():
        assert len(turn) == 10
        assert all(milliseconds > 0 for milliseconds in turn)
    assert len(latency_report.verdicts(report)) == 4
    latency_report.save(report, tmp_path)
    assert "p50 ms" in (tmp_path / "latency.md").read_text()
    assert databases(penstock_dsn) == before


def test_a_run_of_the_gateway_measures_requests_beside_a_constant_answer(penstock_dsn: str, tmp_path: Path) -> None:
    before = databases(penstock_dsn)
    report = gateway_report.run(penstock_dsn, gateway_report.Plan(4, 0.3, 1, 10, 5, 0.5), lambda step: None)

    assert {name: len(rates) for name, rates in report.samples.items()} == {"constant": 1, "push": 1, "pop + ack": 1}
    assert all(rate > 0 for rates in report.samples.values() for rate in rates)
    gateway_report.save(report, tmp_path)
    assert "× constant" in (tmp_path / "gateway.md").read_text()
    assert databases(penstock_dsn) == before


def databases(dsn: str) -> set[str]:
    """Return which databases of benchmarks there are."""
    with psycopg.connect(dsn) as connection:
        rows = connection.execute("SELECT datname FROM pg_database WHERE datname LIKE 'penstock_bench%'").fetchall()
    return {name for (name,) in rows}


def test_workers_are_measured_beside_the_others_on_one_server(dsn: str) -> None:
    plan = jobs_report.QUICK._replace(
        seconds=0.3, jobs={"penstock": 300_000, "procrastinate": 3_000, "pgqueuer": 12_000}, latencies=3
    )
    report = jobs_report.run(dsn, plan, lambda step: None)
    (found,) = report.throughput
    assert all(found.medians[name] > 0 for name in ("penstock", "procrastinate", "pgqueuer"))
    assert {name: len(each) for name, each in report.latency.samples.items()} == dict.fromkeys(found.samples, 3)
    assert [verdict.promise.split(":")[0] for verdict in jobs_report.verdicts(report)] == ["1 workers", "push → start"]
    text = "\n".join(jobs_report.lines(report))
    assert "fsync" in text
    with psycopg.connect(dsn) as connection:
        assert connection.execute("SELECT 1 FROM pg_database WHERE datname LIKE 'penstock_bench_%'").fetchall() == []


def test_a_soak_says_how_much_memory_the_gateway_has(penstock_dsn: str, tmp_path: Path) -> None:
    done = bench("gateway", "--soak", "8", "--json", "--url", penstock_dsn, "--save", str(tmp_path))

    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["requests"] > 0
    assert len(report["memory"]) > 2
    assert min(report["memory"]) > 10 << 20
    assert "growth of the gateway's memory" in (tmp_path / "gateway-soak.md").read_text()
