"""Everything works through PgBouncer in transaction mode, where each transaction may get another server process."""

import os
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

import penstock
from penstock.postgres.address import Address

PGBOUNCER = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
pytestmark = pytest.mark.skipif(
    PGBOUNCER is None, reason="PgBouncer is no wheel: install it (apt-get install pgbouncer) to run these tests"
)


def server_of(client: penstock.Client) -> Address:
    """Return the server that a client has found."""
    database: Any = client._transport
    server: Address = database.server
    return server


@pytest.fixture
def pooled_dsn(penstock_dsn: str) -> Iterator[str]:
    """The DSN of a fresh database behind a real PgBouncer with two server connections."""
    server = conninfo_to_dict(penstock_dsn)
    user, password = str(server.get("user")), str(server.get("password") or "")
    port = _free_port()
    folder = Path(tempfile.mkdtemp(prefix="penstock-pgbouncer-"))
    folder.chmod(0o755)
    (folder / "users.txt").write_text(f'"{user}" "{password}"\n')
    (folder / "pgbouncer.ini").write_text(
        f"[databases]\n* = host={server['host']} port={server['port']}\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\npool_mode = transaction\n"
        f"default_pool_size = 2\nauth_type = plain\nauth_file = {folder}/users.txt\n"
    )
    command = [str(PGBOUNCER), *(["-u", "nobody"] if os.geteuid() == 0 else []), str(folder / "pgbouncer.ini")]
    try:
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
            assert process.stderr is not None
            for line in process.stderr:
                if b"process up" in line:
                    break
            rest = threading.Thread(target=process.stderr.read)
            rest.start()
            yield f"postgresql://{user}:{password}@127.0.0.1:{port}/{server['dbname']}"
            process.terminate()
            rest.join()
    finally:
        shutil.rmtree(folder)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_pooler_is_noticed_and_nothing_is_prepared(pooled_dsn: str, penstock_dsn: str) -> None:
    with penstock.Client(pooled_dsn) as client:
        for number in range(20):
            client.push("orders", number, partition="p")
        assert server_of(client).pooled
        assert [message.json() for message in client.read("orders", "p")] == list(range(20))
    with psycopg.connect(penstock_dsn) as direct:
        assert direct.execute("SELECT count(*) FROM pg_prepared_statements").fetchone() == (0,)
    with penstock.Client(penstock_dsn) as client:
        assert not server_of(client).pooled


def test_many_threads_share_two_server_connections_and_lose_nothing(pooled_dsn: str) -> None:
    pushed, each = 6, 30
    seen: list[int] = []
    with penstock.Client(pooled_dsn, pool_size=pushed) as client:

        def produce(producer: int) -> None:
            for number in range(each):
                with client.transaction() as tx:
                    tx.connection.execute("SELECT 1")
                    tx.push("orders", producer * each + number, partition=f"p{number % 3}")

        threads = [threading.Thread(target=produce, args=(producer,)) for producer in range(pushed)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for batch in client.consume("orders", "readers", idle_timeout=0.5):
            with batch:
                seen += [message.json() for message in batch.messages]
        assert sorted(seen) == list(range(pushed * each))
        assert client.lag("orders", "readers") == 0
        assert not [check for check in client.verify() if check.violations]


async def test_the_asynchronous_client_works_through_a_pooler(pooled_dsn: str) -> None:
    async with penstock.AsyncClient(pooled_dsn) as client:
        await client.push("orders", [1, 2, 3], partition="p")
        batch = await client.pop("orders", "readers")
        assert batch is not None
        assert [message.json() for message in batch.messages] == [1, 2, 3]
        await batch.ack()
        assert await client.lag("orders", "readers") == 0
