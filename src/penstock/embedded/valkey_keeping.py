"""What a keeper does about Valkey: start it when it is wanted, start it again after a crash, give it up.

PostgreSQL never suffers from it: without Valkey everything works, slower.
"""

import logging
import time

from penstock.embedded.account import Account
from penstock.embedded.binaries import installed_valkey
from penstock.embedded.home import Home
from penstock.embedded.valkey import ValkeyServer, evict
from penstock.errors import EmbeddedError, PenstockError

START_TIMEOUT = 20.0
# More crashes than this within the window, and it is given up until somebody asks again.
CRASHES = 5
CRASH_WINDOW = 60.0

log = logging.getLogger(__name__)


class ValkeyKeeping:
    """Looks after the Valkey of one home."""

    def __init__(self, home: Home, account: Account) -> None:
        self.home = home
        self.account = account
        self.server: ValkeyServer | None = None
        self.ready = False
        self.error: str | None = None
        self._crashes: list[float] = []
        self._started_at = 0.0
        self._was_ready = False
        # Of an earlier keeper that was killed.
        if home.valkey_folder.exists():
            evict(home).close()
        home.forget_valkey()

    @property
    def starting(self) -> bool:
        """Whether it was started and is not ready."""
        return self.server is not None and not self.ready

    def look(self) -> bool:
        """Start or restart it if need be; say whether what is to be said of it has changed."""
        try:
            if self.server is None:
                return self.home.valkey_wanted and self._begin()
            if self.server.exited:
                return self._restart(self.server)
            return not self.ready and self._welcome(self.server)
        except PenstockError as error:
            self._give_up(str(error))
        except OSError as error:
            self._give_up(f"Valkey could not be started: {error}.")
        return True

    def was_said(self) -> None:
        """Take away a request that failed, now that whoever made it can read why."""
        if self.error is not None:
            self.home.valkey_wanted = False

    def end(self) -> None:
        """End it, and leave nothing of it."""
        self._stop()
        self.home.forget_valkey()

    def _stop(self) -> None:
        self.ready = False
        if self.server is not None:
            self.server.stop()
            self.server = None

    def _begin(self) -> bool:
        self.error = None
        self._crashes.clear()
        self._was_ready = False
        self.server = ValkeyServer(self.home, self.account, installed_valkey().reachable_by(self.account))
        return self._start(self.server)

    def _start(self, server: ValkeyServer) -> bool:
        self.ready = False
        self._started_at = time.monotonic()
        server.start()
        return True

    def _welcome(self, server: ValkeyServer) -> bool:
        if server.ready:
            self.ready = self._was_ready = True
            log.info("Valkey %s is ready at %s", server.version, server.socket)
        elif time.monotonic() > self._started_at + START_TIMEOUT:
            raise EmbeddedError(f"Valkey was not ready within {START_TIMEOUT:g} seconds.\n{server.log()}")
        return self.ready

    def _restart(self, server: ValkeyServer) -> bool:
        if not self._was_ready:
            raise EmbeddedError(
                "Valkey did not start. Its own words say why; if PENSTOCK_VALKEY_OPTIONS is set, look there too.\n"
                f"{server.log()}"
            )
        now = time.monotonic()
        self._crashes = [crash for crash in self._crashes if crash > now - CRASH_WINDOW] + [now]
        if len(self._crashes) > CRASHES:
            raise EmbeddedError(
                f"Valkey ended {len(self._crashes)} times within {CRASH_WINDOW:g} seconds and was given up.\n"
                f"{server.log()}"
            )
        log.warning("Valkey ended unexpectedly; starting it again")
        return self._start(server)

    def _give_up(self, why: str) -> None:
        log.error("%s", why)
        self.error = why
        self._stop()
