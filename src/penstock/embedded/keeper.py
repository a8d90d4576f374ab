"""The process that looks after the server of one home: `python -m penstock.embedded.keeper HOME`.

It belongs to no user's process, so that none of them has to outlive the others. It starts the
server, starts it again after a crash, and stops it when nobody holds the use lock any more. It
keeps that lock to itself while it stops the server, so that a newcomer waits for the end and then
starts afresh.
"""

import logging
import os
import select
import signal
import sys
import time
from pathlib import Path

from penstock.embedded.account import server_account
from penstock.embedded.binaries import installed
from penstock.embedded.home import Home, State
from penstock.embedded.locks import STEP, Lock
from penstock.embedded.postgres import Server, free_port
from penstock.embedded.valkey_keeping import ValkeyKeeping
from penstock.errors import EmbeddedError, PenstockError

TICK = 0.5
GRACE = 2.0
# More crashes than this within the window, and the keeper gives up.
CRASHES = 5
CRASH_WINDOW = 60.0
PORT_ATTEMPTS = 5

log = logging.getLogger(__name__)


class Keeper:
    """Looks after one server until nobody needs it."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.use = Lock(home.use_lock)
        self.stopping = False
        self.unused_since: float | None = None
        self.crashes: list[float] = []
        self.port = self.port_attempts = 0
        self.ready = self.was_ready = False
        self.wakeup = self._catch_signals()
        home.state = State("starting", os.getpid())
        account = server_account(home.path, home.data)
        home.choose_place(account)
        self.server = Server(home, account, installed().reachable_by(account))
        self.valkey = ValkeyKeeping(home, account)

    def run(self) -> None:
        """Keep the server up for as long as it is needed, then stop it."""
        try:
            self.server.prepare()
            self._start()
            while not self.stopping and not self._unused():
                self._wait(TICK if self.ready and not self.valkey.starting else STEP)
                if self.server.exited:
                    self._restart()
                elif not self.ready and self.server.ready:
                    self._welcome()
                if self.valkey.look():
                    self._say(self.phase)
                    self.valkey.was_said()
            self._say("stopping")
        finally:
            self.valkey.end()
            self.server.stop()
            log.info("PostgreSQL stopped")

    def _start(self) -> None:
        self.ready = False
        # A port that was taken in the moment between our look and the server's is not tried again.
        self.port = self.home.port = free_port(None if self.port_attempts else self.home.port)
        self._say("starting")
        self.server.start(self.port)

    def _welcome(self) -> None:
        self.ready = self.was_ready = True
        self.port_attempts = 0
        self._say("ready")
        log.info("PostgreSQL %s is ready on port %s", self.server.version, self.port)

    def _restart(self) -> None:
        """Start the server again after it ended by itself, unless that makes no sense."""
        if self.server.port_was_taken and self.port_attempts < PORT_ATTEMPTS:
            self.port_attempts += 1
        elif not self.was_ready:
            raise EmbeddedError(
                "PostgreSQL did not start. Its own words say why; if PENSTOCK_POSTGRES_OPTIONS is "
                f"set, look there too.\n{self.server.log()}"
            )
        else:
            now = time.monotonic()
            self.crashes = [crash for crash in self.crashes if crash > now - CRASH_WINDOW] + [now]
            if len(self.crashes) > CRASHES:
                raise EmbeddedError(
                    f"PostgreSQL ended {len(self.crashes)} times within {CRASH_WINDOW:g} seconds "
                    "and was given up. Mend what its log complains of, then start it again.\n"
                    f"{self.server.log()}"
                )
            log.warning("PostgreSQL ended unexpectedly; starting it again")
            self._wait(0.05 * 2 ** len(self.crashes) if len(self.crashes) > 1 else 0)
        self._start()

    def _unused(self) -> bool:
        """Return True, and hold the use lock alone, when nobody has used the server for a while."""
        if not self.use.try_alone():
            self.unused_since = None
            return False
        now = time.monotonic()
        if self.home.pinned or self.unused_since is None:
            self.unused_since = now
        if now - self.unused_since >= GRACE:
            return True
        self.use.release()
        return False

    def _say(self, phase: str) -> None:
        self.phase = phase
        server = self.server if phase == "ready" else None
        valkey = self.valkey.server if self.valkey.ready else None
        self.home.state = State(
            phase,
            os.getpid(),
            postgres=server.process.pid if server and server.process else None,
            port=self.port if server else None,
            version=server.version if server else None,
            valkey=valkey.process.pid if valkey and valkey.process else None,
            valkey_version=valkey.version if valkey else None,
            valkey_socket=valkey.socket if valkey else None,
            valkey_error=self.valkey.error,
        )

    def _wait(self, seconds: float) -> None:
        """Wait for the time to pass or a signal: the server ended, or we are asked to stop."""
        if select.select([self.wakeup], [], [], seconds)[0]:
            os.read(self.wakeup, 4096)

    def _catch_signals(self) -> int:
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGINT, self._stop)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        # Somebody wants Valkey.
        signal.signal(signal.SIGUSR1, lambda *_: None)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        return reader

    def _stop(self, *_: object) -> None:
        self.stopping = True


def main() -> None:
    """Become the keeper of the home that is named on the command line, or leave if it has one."""
    logging.basicConfig(format="%(asctime)s [%(process)d] %(message)s", level=logging.INFO)
    os.umask(0o077)
    home = Home(Path(sys.argv[1]))
    lock = Lock(home.keeper_lock)
    try:
        lock.take(shared=False, deadline=time.monotonic() + 2, purpose="become the keeper")
    except EmbeddedError:
        return
    # The lock goes on to the child. Whoever started us waits for this process only, and knows by
    # its end that a keeper is there; the keeper itself is nobody's child, so nobody must reap it.
    if os.fork():
        os._exit(0)
    _keep(home)
    # Before the use lock, which falls with this process: who gets that one must find this one free.
    # And at once, so that nothing of us is left when somebody is told that we have stopped.
    lock.release()
    os._exit(0)


def _keep(home: Home) -> None:
    try:
        Keeper(home).run()
    except PenstockError as error:
        log.error("%s", error)
        home.state = State("failed", os.getpid(), error=str(error))
    except Exception as error:
        log.exception("The keeper failed")
        home.state = State("failed", os.getpid(), error=f"The keeper failed: {error!r}\n{home.keeper_log.tail()}")
    else:
        home.state = None


if __name__ == "__main__":
    main()
