"""Servers of Valkey for tests, from the wheel of the embedded one; and TLS in front of one, which its build lacks."""

import asyncio
import shutil
import socket
import ssl
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import valkey

from penstock.embedded.binaries import installed_valkey

SOON = 20.0


class ValkeyServer:
    """One server on a port of this machine; killed, it can be started again and has lost everything."""

    def __init__(self, folder: Path, **settings: str) -> None:
        self.port = free_port()
        self._folder = folder
        self._settings = {
            "port": str(self.port),
            "bind": "127.0.0.1",
            "save": "",
            "dir": str(folder),
            **{name.replace("_", "-"): value for name, value in settings.items()},
        }
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def url(self, login: str = "", database: int = 0) -> str:
        return f"valkey://{login}{'@' if login else ''}127.0.0.1:{self.port}/{database}"

    def client(self) -> "valkey.Valkey":
        password = self._settings.get("requirepass")
        return valkey.Valkey(host="127.0.0.1", port=self.port, password=password, socket_timeout=SOON)

    def start(self) -> None:
        arguments = [text for name, value in self._settings.items() for text in (f"--{name}", value)]
        with (self._folder / "valkey.log").open("ab") as log:
            self._process = subprocess.Popen([str(installed_valkey().path), *arguments], stdout=log, stderr=log)
        deadline = time.monotonic() + SOON
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise AssertionError((self._folder / "valkey.log").read_text())
            time.sleep(0.01)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@contextmanager
def valkey_server(**settings: str) -> Iterator[ValkeyServer]:
    """Start a server with settings of its own: `maxmemory_policy="allkeys-lru"`."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-valkey-"))
    server = None
    try:
        server = ValkeyServer(folder, **settings)
        yield server
    finally:
        if server is not None:
            server.kill()
        shutil.rmtree(folder)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def tls_in_front_of(port: int, context: ssl.SSLContext) -> Iterator[int]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_reader, to_writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(pump(reader, to_writer), pump(to_reader, writer))

    async def begin() -> asyncio.Server:
        return await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)

    async def end(server: asyncio.Server) -> None:
        server.close()
        others: Any = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    server = asyncio.run_coroutine_threadsafe(begin(), loop).result(SOON)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        asyncio.run_coroutine_threadsafe(end(server), loop).result(SOON)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(SOON)
        loop.close()
