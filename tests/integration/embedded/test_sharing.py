"""One server per home, for as long as anyone uses it."""

import signal
import socket
from pathlib import Path

import psycopg
import pytest

from penstock.embedded import attach, start_detached, status, stop
from penstock.embedded.home import Home
from penstock.errors import EmbeddedError

from .conftest import StartUser
from .processes import alive, eventually, kill, nothing_runs, run_sql, server_processes, throughout

LONGER_THAN_THE_GRACE = 3.0


def test_processes_share_one_server(home: Path, start_user: StartUser) -> None:
    first, second = start_user(home), start_user(home)
    run_sql(first.dsn, "create table shared as select 42 as answer")
    assert run_sql(second.dsn, "select answer from shared") == [42]
    assert first.dsn == second.dsn


def test_ten_starts_at_once_make_one_server(new_home: Path, start_user: StartUser) -> None:
    users = [start_user(new_home) for _ in range(10)]
    assert len({user.dsn for user in users}) == 1
    assert (new_home / "keeper.log").read_text().count("is ready") == 1


def test_a_home_that_another_process_is_just_making_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    is_dir = Path.is_dir
    # Not there when one looks, and there when one makes it.
    looks = iter([False])
    monkeypatch.setattr(Path, "is_dir", lambda path: next(looks, is_dir(path)))
    Home(tmp_path).prepare()
    assert next(looks, "looked") == "looked"


def test_server_stops_after_the_last_user_has_left(home: Path, start_user: StartUser) -> None:
    user = start_user(home)
    assert run_sql(user.dsn, "select 1") == [1]
    user.leave()
    eventually(lambda: nothing_runs(home), "the server stopped by itself", 8)
    assert not status(home).running


def test_server_stops_after_the_last_user_was_killed(home: Path, start_user: StartUser) -> None:
    user = start_user(home)
    assert run_sql(user.dsn, "select 1") == [1]
    user.kill()
    eventually(lambda: nothing_runs(home), "the server stopped by itself", 8)


def test_server_stays_while_one_user_is_left(home: Path, start_user: StartUser) -> None:
    staying, leaving = start_user(home), start_user(home)
    assert staying.dsn == leaving.dsn
    server = status(home).postgres
    leaving.kill()
    throughout(lambda: alive(server), "the server runs", LONGER_THAN_THE_GRACE)
    assert run_sql(staying.dsn, "select 1") == [1]


def test_pinned_server_stays_without_users_until_it_is_stopped(home: Path) -> None:
    started = start_detached(home)
    assert started.running
    assert started.pinned
    throughout(lambda: alive(started.postgres), "the server runs", LONGER_THAN_THE_GRACE)
    assert stop(home)
    eventually(lambda: nothing_runs(home), "it stopped", 2)
    assert not status(home).pinned
    assert not stop(home)


def test_newcomer_waits_for_a_stop_and_gets_a_new_server(home: Path, start_user: StartUser) -> None:
    attach(home).detach()
    old = status(home).postgres
    kill(old, number=signal.SIGSTOP)
    eventually(lambda: '"stopping"' in (home / "state.json").read_text(), "the keeper stops it")
    newcomer = start_user(home)
    throughout(lambda: status(home).postgres is None, "no server is ready", 0.5)
    kill(old, number=signal.SIGCONT)
    assert run_sql(newcomer.dsn, "select 1") == [1]
    assert status(home).postgres != old
    assert not alive(old)


def test_attaching_twice_in_a_process_needs_detaching_twice(home: Path) -> None:
    first, second = attach(home), attach(home)
    first.detach()
    first.detach()
    assert status(home).in_use
    assert run_sql(second.ensure(), "select 1") == [1]
    second.detach()
    assert not status(home).in_use
    with pytest.raises(EmbeddedError, match="detached"):
        first.ensure()


def test_leaving_the_context_detaches(home: Path) -> None:
    with attach(home) as instance:
        assert instance.home == home
        assert status(home).in_use
    assert not status(home).in_use


def test_dsn_is_the_same_after_a_restart(home: Path) -> None:
    with attach(home) as instance:
        before = instance.dsn
        assert stop(home)
        assert instance.ensure() == before
        assert run_sql(before, "select 1") == [1]


def test_port_of_another_program_is_left_alone(home: Path) -> None:
    with attach(home) as instance:
        stop(home)
        with socket.create_server(("127.0.0.1", Home(home).port or 0)):
            before = instance.dsn
            assert instance.ensure() != before
            assert run_sql(instance.dsn, "select 1") == [1]


def test_homes_that_remember_the_same_port_run_side_by_side(home: Path, own_home: Path) -> None:
    with attach(home) as one, attach(own_home) as other:
        assert run_sql(one.dsn, "select 1") == run_sql(other.dsn, "select 1") == [1]
        assert one.dsn != other.dsn


def test_status_tells_what_runs(home: Path) -> None:
    with attach(home) as instance:
        now = status(home)
        assert now.running
        assert alive(now.keeper)
        assert now.postgres in server_processes(home)
        assert f":{now.port}/" in instance.dsn
        assert now.data == home / "data"
        assert run_sql(instance.dsn, "show server_version") == [now.version]
        assert "ready to accept connections" in now.log.read_text()
        assert not now.pinned


def test_status_of_a_home_that_does_not_exist_makes_nothing(new_home: Path) -> None:
    assert not status(new_home).running
    assert not stop(new_home)
    assert not new_home.exists()


def test_server_is_durable_and_takes_prepared_transactions(home: Path) -> None:
    with attach(home) as instance, psycopg.connect(instance.dsn) as connection:
        for setting, value in {
            "fsync": "on",
            "synchronous_commit": "on",
            "full_page_writes": "on",
            "max_connections": "200",
            "max_prepared_transactions": "10",
            "server_encoding": "UTF8",
        }.items():
            answer = connection.execute("select current_setting(%s)", [setting]).fetchone()
            assert answer == (value,), setting
