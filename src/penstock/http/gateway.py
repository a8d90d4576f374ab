# Generated from async_gateway.py by tools/generate_sync.py. Do not edit: change the source and run `make generate`.
"""The transport to a gateway: it sends operations over HTTP, and raises the errors that come back."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from penstock import forks
from penstock.broker.hints import HintListener
from penstock.broker.messages import PushResult
from penstock.broker.operations.claiming import Ack
from penstock.broker.operations.log import GetSpread
from penstock.broker.operations.operation import Operation
from penstock.broker.operations.pushing import Push
from penstock.broker.retries import Attempts
from penstock.errors import NotOverHttp, Retryable, Unavailable
from penstock.http import encoding, failures
from penstock.http.address import API, parse_address
from penstock.http.answers import Answer
from penstock.http.connections import Connections
from penstock.http.hints import GatewayHints
from penstock.http.reads import READS
from penstock.settings import Settings

log = logging.getLogger("penstock.http")

R = TypeVar("R")


class Gateway:
    """A gateway at one address. A process that is forked from this one has connections of its own."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._address = parse_address(settings.url or "")
        self._connections = Connections(self._address, settings.pool_size, settings.connect_timeout, settings.timeout)
        self._opened = False
        forks.renew_in_children(self._connections.begin)
        self.open()

    def __repr__(self) -> str:
        return repr(str(self._address))

    @property
    def address(self) -> str:
        """The address in use, without the key."""
        return f"{self._address}{self._address.prefix}"

    def open(self) -> None:
        """See that the gateway is there and ready."""
        if not self._opened:
            answer = self._connections.exchange(self._address.get("/readyz"))
            if answer.status != 200:
                raise failures.error_in(answer)
            self._opened = True

    def run(
        self,
        operation: Operation[R],
        timeout: float | None = None,
        *,
        retry: bool = True,
    ) -> R:
        """Send one operation; a connection is waited for `timeout` seconds at most.

        Where the answer was lost it is sent again only if running it twice does no harm.
        """
        answer = self._ask(self._request(operation), operation, timeout, retry)
        return encoding.decode_reply(type(operation), answer.body)

    @contextmanager
    def transaction(self, connection: Any = None) -> Iterator["GatewayScope"]:
        """Begin a transaction of acknowledgements and pushes, which are sent together at its end."""
        if connection is not None:
            raise NotOverHttp(
                "a gateway cannot write into the transaction of your own connection; use a client with the address of "
                "the database"
            )
        scope = GatewayScope(self)
        with scope.outcome():
            yield scope
            scope.send()

    def send_together(self, acks: Sequence[Ack], pushes: Sequence[Push]) -> list[list[PushResult]]:
        """Acknowledge and push in one transaction of the gateway."""
        body = encoding.encode_together(encoding.Together(acks, pushes))
        request = self._address.post(f"{API}/operations/{encoding.TOGETHER}", body, encoding.MEDIA)
        answer = self._ask(request, None, None, True)
        return encoding.decode_together_reply(answer.body)

    @property
    def can_listen(self) -> bool:
        """Whether hints arrive here."""
        return True

    def listen(self, listener: HintListener) -> GatewayHints:
        """Hear the hints of others, until they are closed."""
        return GatewayHints(self._address, listener)

    def close(self) -> None:
        """Close all connections."""
        self._connections.close()

    def _request(self, operation: Operation[Any]) -> bytes:
        path = f"{API}/operations/{type(operation).__name__}"
        sent = encoding.encode_operation(operation)
        if type(operation) in READS:
            return self._address.get(path, sent)
        return self._address.post(path, sent, encoding.MEDIA)

    def _ask(
        self,
        request: bytes,
        operation: Operation[Any] | None,
        timeout: float | None,
        retry: bool,
    ) -> Answer:
        """Send a request, again where that is allowed; the operation says whether it may take effect twice."""
        began = time.monotonic()
        attempts: Attempts | None = None
        while True:
            try:
                answer = self._connections.exchange(request, timeout)
                if answer.status == 200:
                    return answer
                raise failures.error_in(answer)
            except (Unavailable, Retryable) as error:
                if not retry or operation is None:
                    raise
                level = logging.WARNING if attempts is None else logging.DEBUG
                attempts = attempts or Attempts(
                    began, self.settings.timeout, operation.repeatable or operation.stamped, operation.stamped
                )
                if operation.stamped and timeout is None and type(error) is failures.NotSent:
                    # A gateway that is started anew is there again in a moment.
                    pause = attempts.pause_unsent(error)
                else:
                    pause = attempts.pause(error, not isinstance(error, failures.NotSent))
                log.log(level, "%s. The call is tried again", error)
                time.sleep(pause)


class NoConnection:
    """Stands where a transaction has the connection for SQL of the caller's own."""

    def __getattr__(self, name: str) -> Any:
        raise NotOverHttp(
            "a transaction over HTTP has no connection for SQL of your own: it takes pushes and acknowledgements. "
            "Use a client with the address of the database"
        )


class GatewayScope:
    """Acknowledgements and pushes that are sent together: they take effect at the end of the block, or not at all."""

    def __init__(self, gateway: Gateway) -> None:
        self.connection: Any = NoConnection()
        self._gateway = gateway
        self._acks: list[Ack] = []
        self._undo: list[Callable[[], None]] = []

    def run(self, operation: Operation[R]) -> R:
        """Take an acknowledgement, to be sent at the end; what only reads is run at once."""
        if isinstance(operation, Ack):
            self._acks.append(operation)
            # A lease that turns out to be lost fails the whole transaction.
            accepted: Any = [True] * len(operation.ranges)
            reply: R = accepted
            return reply
        if isinstance(operation, GetSpread) or type(operation) in READS:
            return self._gateway.run(operation)
        raise NotOverHttp(
            f"a transaction over HTTP takes pushes and acknowledgements, and {type(operation).__name__} is neither. "
            "Use a client with the address of the database"
        )

    def write(self, pushes: Sequence[Push]) -> list[list[PushResult]]:
        """Send all that the transaction has, and return what came of its pushes."""
        if not pushes:
            return []
        acks, self._acks = self._acks, []
        return self._gateway.send_together(acks, pushes)

    def send(self) -> None:
        """Send acknowledgements that no push went along with."""
        if self._acks:
            self._gateway.send_together(self._acks, ())

    @contextmanager
    def outcome(self) -> Iterator[None]:
        """Surround the whole transaction: where it fails, what was noted is undone."""
        try:
            yield
        except BaseException:
            for undo in reversed(self._undo):
                undo()
            raise

    @contextmanager
    def block(self) -> Iterator[None]:
        """Surround the caller's own code."""
        yield

    def note(self, undo: Callable[[], None]) -> None:
        """Take note of something that is undone where the transaction fails."""
        self._undo.append(undo)

    def check(self) -> None:
        """Do nothing: there are no savepoints here."""
