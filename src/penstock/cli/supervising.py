"""What `penstock up` keeps running beside the embedded server: services with a start line each, stopped in reverse."""

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from penstock.cli import output
from penstock.embedded.home import Home
from penstock.embedded.locks import Lock
from penstock.errors import SetupError

if TYPE_CHECKING:
    from penstock.client.client import Client
    from penstock.gateway.processes import Processes

_USUAL_PORT = 8080


class Service(Protocol):
    """Something that runs while `penstock up` does."""

    name: str

    def start(self) -> str:
        """Start it; return where it is, or what it does."""

    def look(self) -> None:
        """Start again what died; called about twice a second."""

    def stop(self) -> None:
        """Stop it, and wait for that."""


class BoundGateway:
    """An address at which a gateway will be: taken before anything starts, so that it is known whether it is free."""

    def __init__(self, host: str, port: int | None, workers: int, access: dict[str, Any]) -> None:
        from penstock.gateway import serving
        from penstock.gateway.access.settings import Access

        # Without a port of its own, any will do where the usual one is taken.
        ports = [_USUAL_PORT, 0] if port is None else [port]
        for number in ports:
            self.wanted = serving.Serving(None, None, host, number, workers, access=Access(**access))
            self.wanted.access.check(host)
            try:
                self.socket = serving.bind(self.wanted)
                break
            except SetupError:
                if number == ports[-1]:
                    raise
                output.remark(f"port {number} is taken, so the gateway gets another one")
        self.address = serving.address_of(self.socket, self.wanted.access.scheme)


class GatewayService:
    """The gateway, in processes of its own."""

    name = "gateway"

    def __init__(self, bound: BoundGateway, client: "Client", valkey_url: str | None) -> None:
        self._bound = bound
        self._client = client
        self._valkey_url = valkey_url
        self._processes: Processes | None = None

    def start(self) -> str:
        """Start the processes."""
        from dataclasses import replace
        from functools import partial

        from penstock.gateway import serving
        from penstock.gateway.processes import Processes

        wanted = replace(self._bound.wanted, url=self._client.dsn, valkey_url=self._valkey_url)
        if wanted.access.keys and not self._client.has_api_keys():
            output.remark("there is no API key yet: create one with `penstock keys create NAME --scope admin`")
        self._processes = Processes(wanted.workers, partial(serving.run_server, wanted, self._bound.socket))
        self._processes.look()
        return self._bound.address

    def look(self) -> None:
        """Start again what died."""
        if self._processes is not None:
            self._processes.look()

    def stop(self) -> None:
        """Let requests under way be answered, and end."""
        if self._processes is not None:
            self._processes.stop()


@contextmanager
def alone(home: Path, address: str | None) -> Iterator[None]:
    """Be the only `penstock up` of a home; raises SetupError where another one runs, and says where it is."""
    folder = Home(home)
    folder.prepare()
    lock = Lock(folder.up_lock)
    try:
        if not lock.try_alone():
            there = os.pread(lock.descriptor, 1000, 0).decode(errors="replace").strip()
            raise SetupError(
                f"`penstock up` runs for {folder.path} already ({there or 'it is just starting'}); "
                "stop it with `penstock down`, or give another --home"
            )
        os.ftruncate(lock.descriptor, 0)
        gateway = "" if address is None else f", gateway {address}"
        os.pwrite(lock.descriptor, f"process {os.getpid()}{gateway}\n".encode(), 0)
        try:
            yield
        finally:
            lock.release()
    finally:
        lock.close()


@contextmanager
def running(services: Sequence[Service]) -> Iterator[dict[str, str]]:
    """Run services until the block ends; yields where each of them is."""
    with ExitStack() as stack:
        addresses: dict[str, str] = {}
        for service in services:
            stack.callback(service.stop)
            addresses[service.name] = service.start()
            output.remark(f"{service.name}: {addresses[service.name]}")
        yield addresses
