"""A client of the gateway whose answers are lost: what is sent again, what is not, and for how long."""

import select
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from urllib.parse import urlsplit

import pytest

from gateways import RunningGateway, gateway
from penstock import Batch, Client, LeaseLost, NotFound, NotOverHttp, SetupError, Unavailable

from .served import eventually


class Cutter:
    """A proxy that passes everything on, and loses the answers to some requests: those that have a text in them."""

    def __init__(self, url: str) -> None:
        self.losing = b""
        self.lost = 0
        self._to = urlsplit(url)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)

    def _accept(self) -> None:
        while True:
            try:
                here, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(here,), daemon=True).start()

    def _serve(self, here: socket.socket) -> None:
        assert self._to.hostname is not None
        assert self._to.port is not None
        with here, socket.create_connection((self._to.hostname, self._to.port)) as there, suppress(OSError):
            loses = False
            while True:
                for ready in select.select([here, there], (), ())[0]:
                    piece = ready.recv(1 << 20)
                    if not piece:
                        return
                    if ready is there and loses:
                        self.lost += 1
                        return
                    loses = loses or (self.losing != b"" and self.losing in piece and self.lost < 2)
                    (there if ready is here else here).sendall(piece)


@pytest.fixture
def cutter(http: RunningGateway) -> Iterator[Cutter]:
    cutter = Cutter(http.url)
    yield cutter
    cutter.close()


def test_a_push_whose_answer_is_lost_is_sent_again_and_stored_once(cutter: Cutter) -> None:
    cutter.losing = b"/operations/Push"
    with Client(cutter.url, timeout=20) as client:
        result = client.push("q", [b"1", b"2"], partition="p")

        assert cutter.lost == 2
        assert [message.value for message in client.read("q", "p")] == [b"1", b"2"]
        assert (result.first_offset, result.count) == (0, 2)


def test_what_does_harm_twice_is_not_sent_again(cutter: Cutter) -> None:
    with Client(cutter.url) as client:
        client.push("q", b"1")
        cutter.losing = b"/operations/Pop"

        with pytest.raises(Unavailable):
            client.pop("q", "g")

        assert cutter.lost == 1


def test_a_gateway_that_is_not_there_is_an_error_within_the_time_that_was_given() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(Unavailable, match="penstock serve"):
        Client(f"http://127.0.0.1:{port}", timeout=1, connect_timeout=1)


def test_a_gateway_that_goes_away_is_waited_for_as_long_as_was_said(dsn: str) -> None:
    with gateway(dsn) as http:
        client = Client(http.url, timeout=1, connect_timeout=1)
    for call in (lambda: client.push("q", b"1", partition="p"), client.queues):
        began = time.monotonic()
        with pytest.raises(Unavailable):
            call()
        assert 0.5 < time.monotonic() - began < 30
    client.close()


def test_a_push_waits_for_a_gateway_that_is_started_anew(dsn: str, caplog: pytest.LogCaptureFixture) -> None:
    with gateway(dsn) as http:
        client = Client(http.url)
    with client, ThreadPoolExecutor(1) as beside:
        pushing = beside.submit(client.push, "q", b"1", partition="p")
        eventually(lambda: "is tried again" in caplog.text)
        with gateway(dsn, port=urlsplit(http.url).port or 0):
            assert pushing.result(30).first_offset == 0
            assert [each.value for each in client.read("q", "p")] == [b"1"]


def test_an_address_that_is_none_is_refused_without_showing_it() -> None:
    with pytest.raises(SetupError) as refused:
        Client("http://secret@/x?y=1")
    assert "secret" not in str(refused.value)


def test_errors_come_back_as_the_same_classes(http: RunningGateway) -> None:
    with Client(http.url) as client:
        with pytest.raises(NotFound, match="nowhere"):
            client.describe("nowhere")
        client.push("q", b"1")
        batch = client.pop("q", "g", lease=0.05)
        assert batch is not None
        assert client.pop("q", "g", wait=10) is not None
        with pytest.raises(LeaseLost):
            batch.ack()


def test_a_transaction_acknowledges_and_pushes_together_or_not_at_all(http: RunningGateway) -> None:
    with Client(http.url) as client:
        client.push("q", [b"1"], partition="p")
        batch = client.pop("q", "g")
        assert batch is not None
        with client.transaction() as tx:
            tx.ack(batch)
            pending = tx.push("out", b"2", partition="p")
        assert (pending.result.first_offset, client.lag("q", "g")) == (0, 0)

        client.push("q", [b"3"], partition="p")
        late = client.pop("q", "g", lease=0.05)
        assert late is not None
        assert client.pop("q", "g", wait=10) is not None
        with pytest.raises(LeaseLost):
            _ack_and_push(client, late)
        assert not late.settled
        assert [message.value for message in client.read("out", "p")] == [b"2"]


def test_a_transaction_has_no_sql_of_ones_own(http: RunningGateway, dsn: str) -> None:
    with Client(http.url) as client, Client(dsn) as direct:
        with pytest.raises(NotOverHttp), client.transaction() as tx:
            tx.connection.execute("SELECT 1")
        with pytest.raises(NotOverHttp), client.transaction() as tx:
            tx.pop("q", "g")
        with direct.transaction() as own, pytest.raises(NotOverHttp), client.transaction(own.connection):
            pass


def test_a_consumer_that_waits_hears_of_pushes_through_another_gateway(http: RunningGateway) -> None:
    with Client(http.url) as waiting, Client(http.url) as pushing:
        found: list[bytes | None] = []

        def take() -> None:
            batch = waiting.pop("q", "g", wait=30)
            found.extend([] if batch is None else [message.value for message in batch])

        thread = threading.Thread(target=take)
        thread.start()
        deadline = time.monotonic() + 30
        while not waiting._wakes._listening():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        pushing.push("q", b"1")
        thread.join(30)

        assert found == [b"1"]
        # A push of the same process wakes without a hint, which comes later.
        while waiting.stats()["hints_received"] < 1:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def _ack_and_push(client: Client, batch: Batch) -> None:
    with client.transaction() as tx:
        tx.ack(batch)
        tx.push("out", b"4", partition="p")
