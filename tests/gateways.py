"""Gateways for tests: real servers on a port of their own, in a thread of this process."""

import http.client
import json
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from penstock.gateway.serving import Server, Serving, address_of, bind, config_for


class Answer(NamedTuple):
    """What a gateway answered."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class RunningGateway:
    """A gateway that runs, and how tests ask it."""

    def __init__(self, url: str, server: Server) -> None:
        self.url = url
        self.server = server
        self._local = threading.local()

    def ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None, timeout: float = 60
    ) -> Answer:
        """Send a request below /api/v2, or to a path that begins with //, and return the answer."""
        sent = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        types = {"Content-Type": "application/json"} if not isinstance(body, bytes | None) else {}
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=timeout)
        try:
            whole = path[1:] if path.startswith("//") else f"/api/v2{path}"
            connection.request(method, whole, sent, {**types, **(headers or {})})
            answer = connection.getresponse()
            named = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, named, answer.read())
        finally:
            connection.close()

    def get(self, path: str, **options: Any) -> Any:
        """Return what a GET answers, which must succeed."""
        return self._good(self.ask("GET", path, **options))

    def post(self, path: str, body: Any = None, **options: Any) -> Any:
        """Return what a POST answers, which must succeed."""
        return self._good(self.ask("POST", path, body, **options))

    def _good(self, answer: Answer) -> Any:
        assert answer.status < 300, answer
        return answer.json() if answer.body else None


@contextmanager
def gateway(dsn: str, port: int = 0, **options: Any) -> Iterator[RunningGateway]:
    """Run a gateway of a database."""
    serving = Serving(dsn, port=port, **options)
    bound = bind(serving)
    server = Server(config_for(serving), serving)
    thread = threading.Thread(target=server.run, args=([bound],), name="gateway")
    thread.start()
    try:
        deadline = time.monotonic() + 60
        while not server.started:
            assert thread.is_alive(), "the gateway did not start"
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield RunningGateway(address_of(bound), server)
    finally:
        server.handle_exit(signal.SIGTERM, None)
        thread.join(60)
        bound.close()
        assert not thread.is_alive()
