"""Whatever is killed, at whatever moment: what was committed is there, and nothing is stale."""

import os
import shutil
import signal
import subprocess
import threading
from pathlib import Path

import psycopg

from penstock.embedded import attach, status, stop
from penstock.embedded.locks import is_owned

from .conftest import StartUser
from .processes import (
    AS_ROOT,
    NOBODY,
    alive,
    eventually,
    identity,
    keeper_processes,
    kill,
    nothing_runs,
    run_sql,
    server_processes,
)


def test_keeper_restarts_a_killed_server_at_the_same_dsn(home: Path) -> None:
    with attach(home) as instance:
        before, dsn = status(home), instance.dsn
        run_sql(dsn, "create table restarted as select 42 as answer")
        kill(before.postgres)
        eventually(lambda: status(home).postgres not in (None, before.postgres), "a new server")
        assert status(home).keeper == before.keeper
        assert run_sql(dsn, "select answer from restarted") == [42]


def test_committed_rows_survive_the_death_of_all_processes(home: Path) -> None:
    with attach(home) as instance:
        run_sql(instance.dsn, "create table survived as select 42 as answer")
        kill(status(home).keeper, *server_processes(home))
        eventually(lambda: nothing_runs(home), "all are dead")
        assert run_sql(instance.ensure(), "select answer from survived") == [42]


def test_server_does_not_outlive_its_keeper(home: Path) -> None:
    with attach(home) as instance:
        kill(status(home).keeper)
        eventually(lambda: nothing_runs(home), "the server followed its keeper", 10)
        assert run_sql(instance.ensure(), "select 1") == [1]


def test_server_without_keeper_is_replaced(home: Path, start_user: StartUser) -> None:
    with attach(home):
        before = status(home)
        # Stopped, it cannot follow its keeper; as on a system that does not tell it to.
        kill(before.postgres, number=signal.SIGSTOP)
        kill(before.keeper)
        eventually(lambda: not keeper_processes(home), "the keeper is dead")
        newcomer = start_user(home)
        eventually(lambda: status(home).keeper, "there is a new keeper")
        kill(before.postgres, number=signal.SIGCONT)
        assert run_sql(newcomer.dsn, "select 1") == [1]
        assert not alive(before.postgres)


def test_server_without_keeper_can_be_stopped(home: Path) -> None:
    with attach(home):
        before = status(home)
        kill(before.postgres, number=signal.SIGSTOP)
        kill(before.keeper)
        eventually(lambda: not keeper_processes(home), "the keeper is dead")
        assert status(home).running
        answers: list[bool] = []
        stopper = threading.Thread(target=lambda: answers.append(stop(home)))
        stopper.start()
        kill(before.postgres, number=signal.SIGCONT)
        stopper.join()
        eventually(lambda: nothing_runs(home), "nothing is left", 2)


def test_busy_session_of_a_killed_server_does_not_block_the_next(home: Path) -> None:
    with attach(home) as instance, psycopg.connect(instance.dsn) as connection:
        busy = connection.info.backend_pid

        def loop() -> None:
            try:
                connection.execute("do $$ begin loop end loop; end $$")
            except psycopg.OperationalError:
                return

        thread = threading.Thread(target=loop)
        thread.start()
        eventually(
            lambda: run_sql(instance.dsn, "select 1 from pg_stat_activity where query like 'do $$%'"),
            "the session is busy",
        )
        before = status(home).postgres
        kill(before)
        try:
            eventually(lambda: status(home).postgres not in (None, before), "a new server")
            assert not alive(busy)
            assert run_sql(instance.dsn, "select 1") == [1]
        finally:
            kill(busy)
            thread.join()


def test_stale_process_number_of_another_program_is_no_obstacle(home: Path) -> None:
    with attach(home) as instance:
        pid_file = (status(home).data / "postmaster.pid").read_text()
        kill(status(home).keeper, *server_processes(home))
        eventually(lambda: nothing_runs(home), "all are dead")
        # Only a program of the same account looks like the server to PostgreSQL.
        options = identity(NOBODY) if AS_ROOT else {}
        with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, **options) as stranger:
            lines = [str(stranger.pid), *pid_file.splitlines()[1:]]
            (home / "data" / "postmaster.pid").write_text("\n".join(lines))
            assert run_sql(instance.ensure(), "select 1") == [1]
            assert alive(stranger.pid)
            stranger.communicate()


def test_death_while_the_data_folder_is_made_leaves_nothing_half_made(new_home: Path, start_user: StartUser) -> None:
    user = start_user(new_home)
    eventually(lambda: list(new_home.glob("new-*/data/*")), "the data folder is being made")
    kill(*keeper_processes(new_home))
    user.kill()
    assert not (new_home / "data").exists()
    with attach(new_home) as instance:
        assert run_sql(instance.dsn, "select current_database()") == ["penstock"]
    assert not list(new_home.glob("new-*"))


def test_user_killed_during_the_start_leaves_nothing_running(home: Path, start_user: StartUser) -> None:
    user = start_user(home)
    eventually(lambda: is_owned(home / "keeper.lock"), "a keeper is there")
    user.kill()
    eventually(lambda: nothing_runs(home), "all stopped by itself")


def test_server_that_keeps_dying_is_given_up_with_its_log(home: Path) -> None:
    with attach(home) as instance:
        keeper = status(home).keeper
        while alive(keeper):
            if server := status(home).postgres:
                kill(server)
                eventually(lambda: status(home).postgres != server, "its death was seen")
        eventually(lambda: nothing_runs(home), "nothing is left", 2)
        problem = status(home).problem
        assert problem
        assert "given up" in problem
        assert "LOG:" in problem
        assert run_sql(instance.ensure(), "select 1") == [1]
        assert status(home).problem is None


def test_server_goes_when_its_home_is_removed(own_home: Path) -> None:
    with attach(own_home) as instance:
        instance.ensure_valkey()
        valkey = status(own_home).valkey
        assert valkey
        processes = server_processes(own_home) | keeper_processes(own_home) | {valkey}
        shutil.rmtree(own_home)
    eventually(lambda: not any(map(alive, processes)), "all are gone")


def test_forked_child_keeps_the_server_up_after_its_parent_detached(home: Path) -> None:
    instance = attach(home)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writer)
        os.read(reader, 1)
        os._exit(0)
    os.close(reader)
    instance.detach()
    assert status(home).in_use
    os.close(writer)
    os.waitpid(child, 0)
    assert not status(home).in_use
