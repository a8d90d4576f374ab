"""Homes for one test each, which must leave neither a process nor a folder behind."""

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

import pytest

from penstock.embedded import attach, status, stop

from .processes import User, eventually, nothing_runs


@contextmanager
def open_folder() -> Iterator[Path]:
    """Make a folder that every account may enter, unlike those that pytest makes."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-test-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@contextmanager
def cleaned_up(home: Path) -> Iterator[Path]:
    try:
        yield home
    finally:
        if home.is_dir():
            stop(home)
            eventually(lambda: nothing_runs(home), f"all processes of {home} are gone")
            if not (place := status(home).data.parent).samefile(home):
                shutil.rmtree(place)
                remove_if_empty(place.parent)
                remove_if_empty(place.parent.parent)


def remove_if_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()


@pytest.fixture
def new_home() -> Iterator[Path]:
    """A home that does not exist yet."""
    with open_folder() as folder, cleaned_up(folder / "home") as home:
        yield home


@pytest.fixture(scope="session")
def common_home() -> Iterator[Path]:
    with open_folder() as folder, cleaned_up(folder / "home") as home:
        attach(home).detach()
        yield home


@pytest.fixture
def home(common_home: Path) -> Iterator[Path]:
    """A home of an earlier server, which does not run now; later tests will use it too."""
    stop(common_home)
    yield common_home
    stop(common_home)
    eventually(lambda: nothing_runs(common_home), "all its processes are gone")


@pytest.fixture
def own_home(home: Path, new_home: Path) -> Path:
    """A home of an earlier server, of which anything may be spoiled."""
    subprocess.run(["cp", "-a", str(home), str(new_home)], check=True)
    return new_home


class StartUser(Protocol):
    def __call__(self, home: Path, **options: Any) -> User: ...


@pytest.fixture
def start_user() -> Iterator[StartUser]:
    """Starts processes that use a home, and ends them with the test."""
    with ExitStack() as stack:

        def start(home: Path, **options: Any) -> User:
            user = User(home, **options)
            stack.callback(user.kill)
            return user

        yield start
