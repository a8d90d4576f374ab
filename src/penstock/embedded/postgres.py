"""The server: how its data folder is made, how it starts, and how whatever is left of it ends."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path

from penstock.embedded.account import Account
from penstock.embedded.binaries import Binaries
from penstock.embedded.children import die_with_keeper, environment, extra_settings, memory
from penstock.embedded.home import DATABASE, USER, Home
from penstock.embedded.leftovers import evict, postmaster_lines
from penstock.errors import EmbeddedError

OPTIONS_VARIABLE = "PENSTOCK_POSTGRES_OPTIONS"
# Below what most systems give to outgoing connections, so that a port is likely free next time too.
PORTS = range(20000, 30000)
TOOL_TIMEOUT = 300.0

SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "200",
    "max_prepared_transactions": "10",
    "max_wal_size": "2GB",
    "wal_compression": "on",
    "password_encryption": "scram-sha-256",
    "log_line_prefix": "%m [%p] %q%u@%d ",
}


class Server:
    """One PostgreSQL over the data folder of a home."""

    def __init__(self, home: Home, account: Account, binaries: Binaries) -> None:
        self.home = home
        self.account = account
        self.binaries = binaries
        self.version = binaries.version()
        self.process: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    def prepare(self) -> None:
        """Make the data folder where there is none, and refuse one that this server cannot read."""
        data = self.home.data
        if not data.exists():
            self._initialise()
            return
        owner = data.stat().st_uid
        if owner != self.account.uid:
            raise EmbeddedError(
                f"{data} belongs to the user id {owner}. Run as that user, or set PENSTOCK_HOME to another folder."
            )
        found, ours = (data / "PG_VERSION").read_text().strip(), self.version.split(".")[0]
        if found != ours:
            raise EmbeddedError(
                f"{data} was made by PostgreSQL {found}, but PostgreSQL {ours} is installed. "
                f"Bring the data over with pg_dump of version {found} and pg_restore, or set "
                "PENSTOCK_HOME to another folder."
            )

    def start(self, port: int) -> None:
        """Start the server once nothing of an earlier one is left; it becomes ready later."""
        settings = {
            **SETTINGS,
            "shared_buffers": buffers(memory()),
            **extra_settings(OPTIONS_VARIABLE),
            "port": str(port),
        }
        arguments = [f"-c{name}={value}" for name, value in settings.items()]
        lock = evict(self.home)
        self._log_start = self.home.postgres_log.size()
        log = self.home.postgres_log.open()
        try:
            # The server's processes inherit the lock: while it is held, one of them lives. The
            # number in postmaster.pid may be another program's by now, which would keep PostgreSQL
            # from starting.
            (self.home.data / "postmaster.pid").unlink(missing_ok=True)
            self.process = subprocess.Popen(
                [self.binaries.program("postgres"), "-D", str(self.home.data), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env=environment(),
                pass_fds=[lock.descriptor],
                preexec_fn=die_with_keeper(signal.SIGINT),
                **self.account.identity,
            )
        finally:
            os.close(log)
            lock.close()

    @property
    def exited(self) -> bool:
        """Whether the server that was started has ended."""
        return self.process is not None and self.process.poll() is not None

    @property
    def ready(self) -> bool:
        """Whether the server that was started takes connections."""
        lines = postmaster_lines(self.home)
        return self.process is not None and len(lines) > 7 and lines[0] == str(self.process.pid) and lines[7] == "ready"

    @property
    def port_was_taken(self) -> bool:
        """Whether the last start failed because another program had the port."""
        return "could not create any TCP/IP sockets" in self.log()

    def log(self) -> str:
        """Return the last lines that the server wrote since it was started."""
        return self.home.postgres_log.tail(self._log_start)

    def stop(self) -> None:
        """End the server and wait for its end."""
        if self.process is None:
            return
        try:
            evict(self.home, None if self.exited else self.process.pid).close()
        finally:
            # Still there if the home was removed, and the lock with it.
            if not self.exited:
                self.process.send_signal(signal.SIGQUIT)
            self.process.wait()

    def _initialise(self) -> None:
        place = self.home.place
        for leftover in place.glob("new-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        work = Path(tempfile.mkdtemp(prefix="new-", dir=place))
        try:
            secret, data = work / "password", work / "data"
            secret.touch(0o600)
            secret.write_text(self.home.make_password())
            self.account.give(secret)
            self.account.give(work)
            initdb = [self.binaries.program("initdb"), "-D", str(data), "-U", USER, "-E", "UTF8"]
            access = ["--auth=scram-sha-256", f"--pwfile={secret}"]
            self._run([*initdb, *access, "--locale=C"])
            single = [self.binaries.program("postgres"), "--single", "-D", str(data)]
            self._run([*single, "-cexit_on_error=on", "template1"], f"CREATE DATABASE {DATABASE}\n")
            data.rename(self.home.data)
            _sync(place)
        finally:
            shutil.rmtree(work, ignore_errors=True)

    def _run(self, command: list[str], text: str = "") -> None:
        start = self.home.postgres_log.size()
        log = self.home.postgres_log.open()
        try:
            code = subprocess.run(
                command,
                input=text.encode(),
                stdout=log,
                stderr=log,
                cwd="/",
                env=environment(),
                timeout=TOOL_TIMEOUT,
                preexec_fn=die_with_keeper(signal.SIGKILL),
                **self.account.identity,
            ).returncode
        except (OSError, subprocess.SubprocessError) as error:
            raise EmbeddedError(f"{command[0]} could not be run: {error}") from None
        finally:
            os.close(log)
        if code:
            raise EmbeddedError(
                f"The data folder {self.home.data} could not be made. Look for a full disk or "
                "missing permissions, then try again; nothing is left of this attempt.\n"
                f"{self.home.postgres_log.tail(start)}"
            )


def free_port(wanted: int | None) -> int:
    """Return the wanted port, or another one when it is None or taken."""
    # Scattered by the process id: homes that start at the same time should not try the same ports.
    offset = os.getpid() * 7919
    others = (PORTS[(offset + step) % len(PORTS)] for step in range(len(PORTS)))
    for port in (wanted, *others) if wanted else others:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise EmbeddedError(f"No port of 127.0.0.1 is free between {PORTS[0]} and {PORTS[-1]}.")


def buffers(available: int) -> str:
    """Return the size of the server's cache: a sixteenth of the memory, from 128 to 512 MB.

    Larger ones were no faster; with a smaller one, writing a few hundred MB of Spark's took a fifth longer.
    """
    return f"{min(max((available >> 20) // 16, 128), 512)}MB"


def _sync(folder: Path) -> None:
    """Make a rename in the folder outlive a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
