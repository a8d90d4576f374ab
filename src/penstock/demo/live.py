"""A page with something on it: a shop whose orders keep coming, a worker that cannot keep up, and the gateway."""

import os
import random
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from penstock.client.client import Client
from penstock.errors import AlreadyExists, NotFound, PenstockError
from penstock.gateway.serving import Server, Serving, address_of, bind, config_for

APP = Path(__file__).with_name("shop.py")
QUEUES = ("orders", "paid", "shipped", "reports", "stocktaking")
_CUSTOMERS = 60
_STOP_TIMEOUT = 20.0
_WORKER_TIMEOUT = 2.0
# Larger than a double holds exactly: the page shows every digit.
_FIRST_ORDER = 9_007_199_254_740_993


class Live:
    """Everything that moves on the page, from `with` to its end."""

    def __init__(self, client: Client, *, prefix: str = "", port: int = 0, pause: float = 0.5) -> None:
        self._client = client
        self._prefix = prefix
        self._pause = pause
        self._serving = Serving(client.dsn, port=port)
        self._ended = threading.Event()
        self._random = random.Random(7)  # noqa: S311
        self._threads: list[threading.Thread] = []
        self._worker: subprocess.Popen[bytes] | None = None
        self._order = _FIRST_ORDER
        self.address = ""

    def __enter__(self) -> Self:
        self.push(50)
        self._client.push(f"{self._prefix}reports", {"report": "year", "pages": 2000})
        with suppress(AlreadyExists):
            self._client.create_group(f"{self._prefix}orders", "audit")
        environment = {**os.environ, "PENSTOCK_URL": self._client.dsn, "PENSTOCK_DEMO_PREFIX": self._prefix}
        self._worker = subprocess.Popen(
            [sys.executable, "-m", "penstock.cli", "worker", str(APP), "--concurrency", "8"],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            process_group=0,
        )
        bound = bind(self._serving)
        self._server = Server(config_for(self._serving), self._serving)
        # Signals are for whoever shows the demo.
        self._server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
        self._begin(self._server.run, [bound])
        self._begin(self._keep_pushing)
        self.address = address_of(bound)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._server.handle_exit(signal.SIGTERM, None)
        if self._worker is not None:
            self._worker.terminate()
            try:
                # It has a report that takes minutes; whoever stops the demo will not wait for it.
                self._worker.wait(_WORKER_TIMEOUT)
            except subprocess.TimeoutExpired:
                self._worker.kill()
                self._worker.wait()
        for thread in self._threads:
            thread.join(_STOP_TIMEOUT)

    def clean_up(self) -> None:
        """Remove what the shop has left."""
        for queue in QUEUES:
            with suppress(NotFound):
                self._client.delete(f"{self._prefix}{queue}")
        with suppress(NotFound):
            self._client.delete_schedule(f"{self._prefix}stocktaking")

    def push(self, count: int) -> None:
        """Push orders of some customers; a customer's stay in order."""
        self._client.push_many(f"{self._prefix}orders", [self._next() for _ in range(count)])

    def _next(self) -> tuple[str, dict[str, Any]]:
        self._order += 1
        customer = f"customer-{self._random.randrange(_CUSTOMERS):03}"
        return customer, {
            "id": self._order,
            "customer": customer,
            "amount": round(self._random.uniform(3, 500), 2),
            "card": "expired" if self._random.random() < 0.02 else "valid",
            "items": [{"sku": f"A-{self._random.randrange(100)}", "count": self._random.randrange(1, 5)}],
        }

    def _keep_pushing(self) -> None:
        while not self._ended.wait(self._pause):
            with suppress(PenstockError):
                self.push(self._random.randrange(5, 15))

    def _begin(self, target: Any, *arguments: Any) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        thread.start()
        self._threads.append(thread)
