"""A message that kills the whole worker: what the worker had claimed ahead does not die with it."""

from pathlib import Path

import pytest
from groups.steps import pass_time, sweep

from databases import Connection
from penstock import Client

from .processes import WorkerProcess, handled, running, values

KILLED = -9


@pytest.mark.parametrize("mode", ["ordered", "shared"])
def test_a_message_that_kills_its_worker_takes_no_other_one_with_it(
    dsn: str, sql: Connection, client: Client, mode: str
) -> None:
    group = f"killing.{mode}"
    client.create_group(mode, group, mode=mode)
    client.push(mode, "poison", partition="p0")
    client.push_many(mode, [(f"p{number}", number) for number in range(1, 4)])
    for _ in range(2):
        assert WorkerProcess(dsn, "killing.py", "--actions", group).end() == KILLED
        pass_time(sql, "c")
        sweep(sql)
    with running(dsn, "killing.py", "--actions", group):
        handled(client, mode, group)
    assert [letter.partition for letter in client.dead_letters(mode, group)] == ["p0"]


def test_a_child_that_is_killed_while_it_starts_is_replaced(
    dsn: str, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deaths = tmp_path / "deaths"
    deaths.write_text("once")
    monkeypatch.setenv("PENSTOCK_TEST_DEATHS", str(deaths))
    client.create_group("start", "starting.start", backoff_initial=0.01)
    client.push("start", ["live", "die"])
    with running(dsn, "starting.py") as worker:
        worker.wait_for("a child process of starting.start cannot start: the process was killed by SIGKILL")
        assert values(client, "started", 2) == ["live", "die"]
    assert deaths.read_text() == ""


def test_a_worker_whose_children_never_start_ends_and_says_why(
    dsn: str, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deaths = tmp_path / "deaths"
    deaths.write_text("always\n" * 99)
    monkeypatch.setenv("PENSTOCK_TEST_DEATHS", str(deaths))
    client.create_group("start", "starting.start")
    client.push("start", "live")
    worker = WorkerProcess(dsn, "starting.py")
    assert worker.end() not in (0, KILLED)
    assert "cannot start: the process was killed by SIGKILL" in worker.lines[-1]
    (group,) = client.groups("start")
    assert (group.claimed, group.lag) == (0, 1)
