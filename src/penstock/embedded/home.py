"""The home folder: every file in it has its name, its meaning and its permissions here.

| file | meaning |
| --- | --- |
| `use.lock` | shared by every process that uses the server |
| `start.lock` | held while someone looks whether a keeper must be started |
| `up.lock` | held by `penstock up` while it runs; says which process that is, and where its gateway is |
| `keeper.lock` | held by the keeper for as long as it lives |
| `state.json` | what the keeper last said; only to be believed while it lives, but for a failure |
| `pinned` | present while the server shall stay up without users |
| `password`, `port` | kept, so that the DSN outlives the server |
| `place` | where the data folder is, when it cannot be in here |
| `keeper.log`, `postgres.log`, `valkey.log` | what happened |
| `data`, `server.lock` | the data folder, and a lock that every process of its server holds |
| `valkey_wanted` | present from the first request for Valkey until its keeper gives it up or ends |
| `valkey`, `valkey.lock` | the folder of Valkey's socket, and a lock that its process holds |
| `valkey_place` | where this folder is, when the path of a socket in here would be too long |
| `valkey_process` | the number of that process, with which a killed keeper's is found |
| `java`, `spark` | homes of these for Spark |
"""

import hashlib
import json
import os
import secrets
import shutil
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import quote

from penstock.embedded.account import Account
from penstock.embedded.locks import is_owned, open_private
from penstock.errors import EmbeddedError

# Where root puts what an unprivileged account must be able to enter.
SHARED = Path("/var/lib/penstock")
# Not "penstock": a user's own tables would land in the schema of that name.
USER = "postgres"
DATABASE = "penstock"
SOCKET = "socket"
# Of the path of a socket: 108 bytes on Linux, 104 on macOS, with the zero at its end.
SOCKET_LIMIT = 103
LOG_LIMIT = 16 * 2**20
LOG_TAIL = 15


@dataclass(frozen=True)
class State:
    """What the keeper publishes for other processes."""

    phase: str
    keeper: int
    postgres: int | None = None
    port: int | None = None
    version: str | None = None
    error: str | None = None
    valkey: int | None = None
    valkey_version: str | None = None
    valkey_socket: str | None = None
    valkey_error: str | None = None


class Log:
    """A log file that can quote what was written to it since a moment."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def open(self) -> int:
        """Open the log for appending, setting a large one aside."""
        if self.size() > LOG_LIMIT:
            self.path.replace(self.path.with_suffix(".log.old"))
        return open_private(self.path, os.O_WRONLY | os.O_APPEND)

    def size(self) -> int:
        """Return how much was written so far."""
        return self.path.stat().st_size if self.path.exists() else 0

    def tail(self, start: int = 0) -> str:
        """Return the last lines that were written after `start`, ready for an error message."""
        try:
            with self.path.open("rb") as file:
                file.seek(max(start, self.size() - 2**16))
                lines = file.read().decode(errors="replace").splitlines()[-LOG_TAIL:]
        except OSError as error:
            return f"(The log {self.path} cannot be read: {error.strerror}.)"
        return "\n".join([f"The last lines of {self.path}:", *(f"  {line}" for line in lines)])


class Home:
    """The folder that one embedded server belongs to."""

    def __init__(self, path: Path) -> None:
        self.path = Path(os.path.abspath(path))
        self.use_lock = self.path / "use.lock"
        self.start_lock = self.path / "start.lock"
        self.keeper_lock = self.path / "keeper.lock"
        self.up_lock = self.path / "up.lock"
        self._pin = self.path / "pinned"
        self.keeper_log = Log(self.path / "keeper.log")
        self.postgres_log = Log(self.path / "postgres.log")
        self.valkey_log = Log(self.path / "valkey.log")
        self._valkey_wanted = self.path / "valkey_wanted"

    def prepare(self) -> None:
        """Make the folder, or say why it cannot be used."""
        as_root = os.name == "posix" and os.geteuid() == 0
        try:
            if not self.path.is_dir():
                # Another process may be making it, too.
                self.path.mkdir(parents=True, exist_ok=True)
                # Root's server runs as another account, which has to pass through.
                self.path.chmod(0o711 if as_root else 0o700)
            with tempfile.TemporaryFile(dir=self.path):
                pass
        except OSError as error:
            raise EmbeddedError(
                f"The home folder {self.path} cannot be used: {error.strerror}. "
                "Set PENSTOCK_HOME to a folder that you can write to."
            ) from None

    @property
    def keeper_lives(self) -> bool:
        """Whether a keeper looks after this home now."""
        return is_owned(self.keeper_lock)

    @property
    def state(self) -> State | None:
        """What the keeper last said."""
        text = self._read("state.json")
        return State(**json.loads(text)) if text else None

    @state.setter
    def state(self, state: State | None) -> None:
        if state:
            self._write("state.json", json.dumps(asdict(state)))
        else:
            (self.path / "state.json").unlink(missing_ok=True)

    @property
    def pinned(self) -> bool:
        """Whether the server shall stay up without users."""
        return self._pin.exists()

    @pinned.setter
    def pinned(self, pinned: bool) -> None:
        if pinned:
            os.close(open_private(self._pin, os.O_WRONLY))
        elif self.pinned:
            self._pin.unlink()

    @property
    def valkey_wanted(self) -> bool:
        """Whether somebody has asked for Valkey since the keeper started."""
        return self._valkey_wanted.exists()

    @valkey_wanted.setter
    def valkey_wanted(self, wanted: bool) -> None:
        if wanted:
            os.close(open_private(self._valkey_wanted, os.O_WRONLY))
        else:
            self._valkey_wanted.unlink(missing_ok=True)

    @property
    def port(self) -> int | None:
        """The port that the server had last."""
        text = self._read("port")
        return int(text) if text else None

    @port.setter
    def port(self, port: int) -> None:
        self._write("port", str(port))

    @property
    def place(self) -> Path:
        """The folder that holds the data folder."""
        text = self._read("place")
        return Path(text) if text else self.path

    @property
    def data(self) -> Path:
        """The data folder, whether it exists or not."""
        return self.place / "data"

    @property
    def server_lock(self) -> Path:
        """The lock that every process of the server holds."""
        return self.place / "server.lock"

    @property
    def valkey_lock(self) -> Path:
        """The lock that Valkey's process holds."""
        return self.place / "valkey.lock"

    @property
    def valkey_process(self) -> int | None:
        """The process of Valkey that was started last."""
        text = self._read("valkey_process")
        return int(text) if text else None

    @valkey_process.setter
    def valkey_process(self, process: int) -> None:
        self._write("valkey_process", str(process))

    @property
    def valkey_folder(self) -> Path:
        """The folder of Valkey's socket, whether it exists or not."""
        text = self._read("valkey_place")
        return Path(text) if text else self.place / "valkey"

    def make_valkey_folder(self, account: Account) -> Path:
        """Make an empty folder for Valkey's socket, which nobody but the account may enter."""
        self._remove_valkey_folder()
        folder = self.place / "valkey"
        if len(os.fsencode(folder / SOCKET)) > SOCKET_LIMIT:
            # Not where TMPDIR says, which may be as deep.
            folder = Path(tempfile.mkdtemp(prefix="penstock-", dir="/tmp"))
            self._write("valkey_place", str(folder))
        else:
            folder.mkdir(mode=0o700)
        account.give(folder)
        return folder

    def forget_valkey(self) -> None:
        """Remove what was kept about a Valkey that has ended."""
        if self.path.exists():
            self._remove_valkey_folder()
            self.valkey_wanted = False
            (self.path / "valkey_process").unlink(missing_ok=True)

    def _remove_valkey_folder(self) -> None:
        folder = self.valkey_folder
        elsewhere = folder.parent != self.place
        # A temporary folder may have been removed, and its name be somebody else's by now.
        if not elsewhere or (folder.is_dir() and not folder.is_symlink() and folder.stat().st_uid in self._owners()):
            shutil.rmtree(folder, ignore_errors=True)
        (self.path / "valkey_place").unlink(missing_ok=True)

    def _owners(self) -> set[int]:
        return {os.geteuid(), self.path.stat().st_uid, *([self.data.stat().st_uid] if self.data.exists() else [])}

    def valkey_url(self, socket: str) -> str:
        """Return the address of Valkey, password included."""
        return f"unix://:{self.password}@{quote(socket)}"

    def choose_place(self, account: Account) -> None:
        """Decide where the data folder shall be: in here, unless the account cannot come in."""
        if self.data.exists() or self.place != self.path or account.reaches(self.path):
            return
        homes = SHARED / "homes"
        open_folder(homes)
        # The random end: a home that was removed and made anew must not find the old one's data.
        prefix = hashlib.sha256(bytes(self.path)).hexdigest()[:12]
        place = Path(tempfile.mkdtemp(prefix=f"{prefix}-", dir=homes))
        place.chmod(0o711)
        (place / "home").write_text(f"{self.path}\n")
        self._write("place", str(place))

    def make_password(self) -> str:
        """Return the password for a new data folder, keeping it first."""
        if not self._read("password"):
            self._write("password", secrets.token_urlsafe(32))
        return self.password

    @property
    def password(self) -> str:
        """The password of the server's only role."""
        password = self._read("password")
        if not password:
            raise EmbeddedError(
                f"{self.path / 'password'} is missing, and without it nobody can use the data in "
                f"{self.data}. Restore the file, or use another PENSTOCK_HOME."
            )
        return password

    def dsn(self, port: int) -> str:
        """Return the URL of the database, password included."""
        return f"postgresql://{USER}:{self.password}@127.0.0.1:{port}/{DATABASE}"

    def _read(self, name: str) -> str | None:
        try:
            return (self.path / name).read_text().strip()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise EmbeddedError(
                f"{self.path / name} cannot be read: {error.strerror}. "
                "Run as the user who made this home, or set PENSTOCK_HOME to another folder."
            ) from None

    def _write(self, name: str, text: str) -> None:
        """Replace the file at once: a reader or a crash meets the old text or the new one.

        Only the keeper writes, and there is one, so the draft needs no name of its own.
        """
        draft = self.path / f".{name}.new"
        with open(open_private(draft, os.O_WRONLY | os.O_TRUNC), "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self.path / name)


def open_folder(path: Path) -> None:
    """Make a folder of root's that every account may enter, whatever the umask."""
    for folder in (*reversed(path.parents), path):
        if not folder.exists():
            folder.mkdir(exist_ok=True)
            folder.chmod(0o755)
