"""What a user's process does with the embedded server: attach to it, stop it, look at it."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from penstock.embedded.binaries import installed
from penstock.embedded.home import Home, State
from penstock.embedded.leftovers import evict
from penstock.embedded.locks import STEP, Lock, is_owned, is_shared
from penstock.embedded.valkey import evict as evict_valkey
from penstock.errors import EmbeddedError

TIMEOUT = 60.0


@dataclass(frozen=True)
class Status:
    """How the embedded server of a home is doing; `problem` is why the last one was given up."""

    running: bool
    keeper: int | None
    postgres: int | None
    port: int | None
    version: str | None
    data: Path
    log: Path
    pinned: bool
    in_use: bool
    problem: str | None
    valkey: int | None
    valkey_version: str | None
    valkey_socket: str | None
    valkey_log: Path
    valkey_problem: str | None


class Instance:
    """A hold on the embedded server, which stays up until `detach` or the end of this process."""

    def __init__(self, home: Path, timeout: float) -> None:
        self._home = Home(home)
        self._timeout = timeout
        deadline = time.monotonic() + timeout
        self._home.prepare()
        self._use: Lock | None = Lock(self._home.use_lock)
        try:
            self._use.take(shared=True, deadline=deadline, purpose="attach while the embedded PostgreSQL stops")
            self._dsn = _ensure(self._home, deadline)
        except BaseException:
            self.detach()
            raise

    @property
    def home(self) -> Path:
        """The folder that the server belongs to."""
        return self._home.path

    @property
    def dsn(self) -> str:
        """The URL of the database, password included, as of the last `ensure`."""
        return self._dsn

    def ensure(self) -> str:
        """Return the DSN after making sure that the server runs, even if it was killed."""
        if self._use is None:
            raise EmbeddedError("This instance was detached. Attach again.")
        self._dsn = _ensure(self._home, time.monotonic() + self._timeout)
        return self._dsn

    def ensure_valkey(self) -> str:
        """Return the address of Valkey, password included, after making sure that it runs."""
        if self._use is None:
            raise EmbeddedError("This instance was detached. Attach again.")
        return _ensure_valkey(self._home, time.monotonic() + self._timeout)

    def running_valkey(self) -> str | None:
        """Return the address of Valkey, password included, if it runs; start nothing."""
        state = self._home.state if self._home.keeper_lives else None
        return self._home.valkey_url(state.valkey_socket) if state and state.valkey_socket else None

    def detach(self) -> None:
        """Let go of the server; a second call does nothing."""
        if self._use is not None:
            self._use.close()
            self._use = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.detach()

    def __repr__(self) -> str:
        return f"Instance(home={str(self.home)!r}, {'attached' if self._use else 'detached'})"


def attach(home: Path, *, timeout: float = TIMEOUT) -> Instance:
    """Attach to the embedded PostgreSQL of the home, starting it when it does not run."""
    return Instance(home, timeout)


def start_detached(home: Path, *, timeout: float = TIMEOUT) -> Status:
    """Start the server if need be, and pin it: it stays up without users until `stop`."""
    with attach(home, timeout=timeout):
        Home(home).pinned = True
        return status(home)


def stop(home: Path, timeout: float = TIMEOUT) -> bool:
    """Stop the server even if it is pinned or in use; return whether one was running."""
    place = Home(home)
    place.pinned = False
    deadline = time.monotonic() + timeout
    asked: set[int] = set()
    while place.keeper_lives:
        state = place.state
        if state and state.keeper not in asked:
            _signal(state.keeper, signal.SIGTERM)
            asked.add(state.keeper)
        if time.monotonic() > deadline:
            raise EmbeddedError(
                f"The embedded PostgreSQL of {place.path} did not stop within {timeout:g} seconds. "
                f"Try again with a longer timeout.\n{place.postgres_log.tail()}"
            )
        time.sleep(STEP)
    if is_owned(place.server_lock):
        evict(place).close()
        asked.add(0)
    _remove_valkey(place)
    return bool(asked)


def status(home: Path) -> Status:
    """Return how the server of the home is doing, changing nothing."""
    place = Home(home)
    keeper_lives = place.keeper_lives
    state = place.state
    alive = state if keeper_lives else None
    return Status(
        running=(alive.phase == "ready") if alive else is_owned(place.server_lock),
        keeper=alive.keeper if alive else None,
        postgres=alive.postgres if alive else None,
        port=alive.port if alive else None,
        version=alive.version if alive else None,
        data=place.data,
        log=place.postgres_log.path,
        pinned=place.pinned,
        in_use=is_shared(place.use_lock),
        problem=state.error if state else None,
        valkey=alive.valkey if alive else None,
        valkey_version=alive.valkey_version if alive else None,
        valkey_socket=alive.valkey_socket if alive else None,
        valkey_log=place.valkey_log.path,
        valkey_problem=alive.valkey_error if alive else None,
    )


def _ensure(home: Home, deadline: float) -> str:
    """Return the DSN once the server is ready, after starting a keeper if there is none."""
    start = Lock(home.start_lock)
    try:
        start.take(shared=False, deadline=deadline, purpose="start the embedded PostgreSQL")
        try:
            return home.dsn(_ready_port(home, deadline))
        finally:
            start.release()
    finally:
        start.close()


def _ready_port(home: Home, deadline: float) -> int:
    started = False
    while True:
        # While a keeper lives, the state is its own: an earlier one's is removed before a keeper is
        # started.
        lives, state = home.keeper_lives, home.state
        if lives and state and state.phase == "ready" and state.port:
            return state.port
        if not lives and started:
            raise EmbeddedError(_why_it_ended(home, state))
        if not lives:
            home.state = None
            _start_keeper(home, deadline)
            started = True
        if time.monotonic() > deadline:
            raise EmbeddedError(
                f"The embedded PostgreSQL of {home.path} was not ready in time. If it is "
                "recovering from a crash, try again with a longer timeout.\n"
                f"{home.postgres_log.tail()}"
            )
        time.sleep(STEP)


def _ensure_valkey(home: Home, deadline: float) -> str:
    start = Lock(home.start_lock)
    try:
        start.take(shared=False, deadline=deadline, purpose="start the embedded Valkey")
        try:
            return home.valkey_url(_ready_socket(home, deadline))
        finally:
            start.release()
    finally:
        start.close()


def _ready_socket(home: Home, deadline: float) -> str:
    asked: int | None = None
    while True:
        _ready_port(home, deadline)
        state = home.state
        if state and state.valkey_socket:
            return state.valkey_socket
        if state and state.keeper != asked:
            home.valkey_wanted = True
            _signal(state.keeper, signal.SIGUSR1)
            asked = state.keeper
        # Its keeper says why before it takes the request away.
        elif state and not home.valkey_wanted and (state := home.state):
            raise EmbeddedError(state.valkey_error or f"The embedded Valkey of {home.path} was stopped. Try again.")
        if time.monotonic() > deadline:
            raise EmbeddedError(
                f"The embedded Valkey of {home.path} was not ready in time. Try again.\n{home.valkey_log.tail()}"
            )
        time.sleep(STEP)


def _remove_valkey(home: Home) -> None:
    """End a Valkey that outlived its keeper, and remove its socket; nothing where no keeper had any."""
    if home.valkey_lock.exists() and home.valkey_folder.exists() and not home.keeper_lives:
        lock = evict_valkey(home)
        home.forget_valkey()
        lock.close()


def _start_keeper(home: Home, deadline: float) -> None:
    installed()
    log = home.keeper_log.open()
    # The keeper must find this very penstock and its wheel, however our process came by them.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
    try:
        subprocess.run(
            [sys.executable, "-P", "-m", "penstock.embedded.keeper", str(home.path)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            env=environment,
            start_new_session=True,
            timeout=max(1.0, deadline - time.monotonic()),
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise EmbeddedError(
            f"The keeper of the embedded PostgreSQL could not be started: {error}\n{home.keeper_log.tail()}"
        ) from None
    finally:
        os.close(log)


def _why_it_ended(home: Home, state: State | None) -> str:
    if state and state.error:
        return state.error
    if state is None:
        return f"The embedded PostgreSQL of {home.path} was stopped during its start. Try again."
    return f"The keeper was killed during the server's start. Try again.\n{home.keeper_log.tail()}"


def _signal(keeper: int, number: signal.Signals) -> None:
    try:
        os.kill(keeper, number)
    except ProcessLookupError:
        pass
    except PermissionError:
        raise EmbeddedError(
            f"The keeper, process {keeper}, is another user's. Do this as that user or as root."
        ) from None
