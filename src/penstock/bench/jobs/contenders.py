"""The three job queues, each used as its own documentation says, with the settings that make it fastest here."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any, LiteralString, Protocol

import psycopg

from penstock import AsyncClient, Item, action

# Called with the payload when a handler starts.
Started = Callable[[bytes], None]
Push = Callable[[Sequence[bytes]], Awaitable[object]]

QUEUE = "jobs"
PARTITIONS = 64


class Contender(Protocol):
    """One way to run jobs."""

    async def prepare(self, url: str) -> None:
        """Make what the first job needs, in an empty database."""

    def pushing(self, url: str) -> AbstractAsyncContextManager[Push]:
        """Return what pushes jobs."""

    def working(self, url: str, started: Started) -> AbstractAsyncContextManager[None]:
        """Run a worker within a block."""

    async def left(self, url: str) -> int:
        """Return how many jobs are not done."""


class Penstock:
    """Penstock, in order per partition."""

    async def prepare(self, url: str) -> None:  # noqa: D102
        async with AsyncClient(url) as client:
            await client.create_group(QUEUE, "bench.noop")

    @asynccontextmanager
    async def pushing(self, url: str) -> AsyncIterator[Push]:  # noqa: D102
        async with AsyncClient(url) as client:
            turn = 0

            async def push(payloads: Sequence[bytes]) -> None:
                nonlocal turn
                turn += 1
                await client.push(QUEUE, list(payloads), partition=str(turn % PARTITIONS))

            yield push

    @asynccontextmanager
    async def working(self, url: str, started: Started) -> AsyncIterator[None]:  # noqa: D102
        from penstock.workers.running import Worker

        @action(queue=QUEUE, flow="bench")
        async def noop(item: Item) -> None:
            started(item.payload or b"")

        async with AsyncClient(url) as client:
            worker = Worker([noop], client, grace=5.0, echo=lambda line: None)
            running = asyncio.create_task(worker.run(handle_signals=False))
            try:
                yield
            finally:
                worker.stop()
                await running

    async def left(self, url: str) -> int:  # noqa: D102
        async with AsyncClient(url) as client:
            return await client.lag(QUEUE, "bench.noop")


class Procrastinate:
    """Procrastinate, with a connection pool of psycopg."""

    # More than that made it slower, and fewer, too.
    concurrency = 10

    async def prepare(self, url: str) -> None:  # noqa: D102
        async with self._app(url, lambda payload: None) as (app, _):
            await app.schema_manager.apply_schema_async()

    @asynccontextmanager
    async def pushing(self, url: str) -> AsyncIterator[Push]:  # noqa: D102
        async with self._app(url, lambda payload: None) as (_, task):

            async def push(payloads: Sequence[bytes]) -> None:
                await task.batch_defer_async(*({"payload": payload.decode()} for payload in payloads))

            yield push

    @asynccontextmanager
    async def working(self, url: str, started: Started) -> AsyncIterator[None]:  # noqa: D102
        async with self._app(url, started) as (app, _):
            running = asyncio.create_task(
                app.run_worker_async(concurrency=self.concurrency, install_signal_handlers=False, wait=True)
            )
            try:
                yield
            finally:
                running.cancel()
                with suppress(asyncio.CancelledError):
                    await running

    async def left(self, url: str) -> int:  # noqa: D102
        return await _count(url, "SELECT count(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing')")

    @asynccontextmanager
    async def _app(self, url: str, started: Started) -> AsyncIterator[tuple[Any, Any]]:
        import procrastinate

        app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url))

        @app.task(name="noop")
        async def noop(payload: str) -> None:
            started(payload.encode())

        async with app.open_async():
            yield app, noop


class PgQueuer:
    """PgQueuer, with asyncpg."""

    # More than that did not make it faster.
    batch_size = 100

    async def prepare(self, url: str) -> None:  # noqa: D102
        async with self._queries(url) as queries:
            await queries.install()

    @asynccontextmanager
    async def pushing(self, url: str) -> AsyncIterator[Push]:  # noqa: D102
        async with self._queries(url) as queries:

            async def push(payloads: Sequence[bytes]) -> None:
                count = len(payloads)
                await queries.enqueue(["noop"] * count, list(payloads), [0] * count)

            yield push

    @asynccontextmanager
    async def working(self, url: str, started: Started) -> AsyncIterator[None]:  # noqa: D102
        import pgqueuer

        async with self._connection(url) as connection:
            manager = pgqueuer.PgQueuer(pgqueuer.AsyncpgDriver(connection))

            @manager.entrypoint("noop")
            async def noop(job: Any) -> None:
                started(job.payload or b"")

            running = asyncio.create_task(manager.run(batch_size=self.batch_size))
            try:
                yield
            finally:
                manager.shutdown.set()
                with suppress(asyncio.CancelledError):
                    await running

    async def left(self, url: str) -> int:  # noqa: D102
        return await _count(url, "SELECT count(*) FROM pgqueuer")

    @asynccontextmanager
    async def _queries(self, url: str) -> AsyncIterator[Any]:
        import pgqueuer
        from pgqueuer.queries import Queries

        async with self._connection(url) as connection:
            yield Queries(pgqueuer.AsyncpgDriver(connection))

    @asynccontextmanager
    async def _connection(self, url: str) -> AsyncIterator[Any]:
        import asyncpg
        from psycopg.conninfo import conninfo_to_dict

        given: Any = conninfo_to_dict(url)
        connection = await asyncpg.connect(
            host=given.get("host"),
            port=int(given.get("port", 5432)),
            user=given.get("user"),
            password=given.get("password"),
            database=given.get("dbname"),
        )
        try:
            yield connection
        finally:
            await connection.close()


async def _count(url: str, query: LiteralString) -> int:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        row = await (await connection.execute(query)).fetchone()
        return 0 if row is None else int(row[0])


CONTENDERS: dict[str, Contender] = {
    "penstock": Penstock(),
    "procrastinate": Procrastinate(),
    "pgqueuer": PgQueuer(),
}
