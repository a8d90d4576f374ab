"""One suite for every way in: `api` is each client over each transport, all with the calls of the synchronous one."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial, wraps
from inspect import isawaitable
from typing import Any, NamedTuple

import pytest

from gateways import RunningGateway, gateway
from penstock import AsyncBatch, AsyncClient, Client, PartitionInfo, QueueInfo
from penstock.broker.async_transport import AsyncTransport
from penstock.broker.transport import Transport
from penstock.client.async_transaction import AsyncTransaction
from penstock.http.async_gateway import AsyncGateway
from penstock.http.gateway import Gateway
from penstock.postgres.async_database import AsyncDatabase
from penstock.postgres.database import Database
from penstock.settings import Settings, resolve

from . import warm
from .recorder import AsyncRecorder, Recorder


class InALoop:
    """An asynchronous client that is called like the synchronous one."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._runner = asyncio.Runner()
        self._closed = False
        try:
            self._client = self._runner.run(self._open(*arguments, **options))
        except BaseException:
            # Nobody else can: a loop that is left open is found in the middle of another test.
            self._runner.close()
            raise

    @staticmethod
    async def _open(*arguments: Any, **options: Any) -> AsyncClient:
        client = AsyncClient(*arguments, **options)
        await client.open()
        return client

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._client, name)
        return self._called(value) if callable(value) else value

    def __repr__(self) -> str:
        return repr(self._client)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._runner.run(self._client.close())
            self._runner.close()

    def _called(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def call(*arguments: Any, **options: Any) -> Any:
            given = [_awaitable(each) if method.__name__ == "process" else _bare(each) for each in arguments]
            result = method(*given, **options)
            if isawaitable(result):
                return self._looped(self._run(result))
            if hasattr(result, "__aenter__"):
                return self._block(result)
            return self._items(result) if hasattr(result, "__anext__") else result

        return call

    def _looped(self, value: Any) -> Any:
        return Looped(value, self) if isinstance(value, AsyncBatch | AsyncTransaction) else value

    def _run(self, awaitable: Any) -> Any:
        async def wait() -> Any:
            return await awaitable

        return self._runner.run(wait())

    def _items(self, items: AsyncIterator[Any]) -> Iterator[Any]:
        nothing = object()

        async def following() -> Any:
            return await anext(items, nothing)

        while (item := self._runner.run(following())) is not nothing:
            yield self._looped(item)

    @contextmanager
    def _block(self, block: Any) -> Iterator[Any]:
        value = self._looped(self._run(block.__aenter__()))
        try:
            yield value
        except BaseException as error:
            if not self._run(block.__aexit__(type(error), error, error.__traceback__)):
                raise
        else:
            self._run(block.__aexit__(None, None, None))


class Looped:
    """A batch or transaction of an asynchronous client that is called like the synchronous one."""

    def __init__(self, bare: Any, loop: InALoop) -> None:
        self.bare = bare
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.bare, name)
        return self._loop._called(value) if callable(value) else value

    def __len__(self) -> int:
        return len(self.bare)

    def __iter__(self) -> Any:
        return iter(self.bare)

    def __enter__(self) -> Any:
        self._loop._run(self.bare.__aenter__())
        return self

    def __exit__(self, *error: Any) -> Any:
        return self._loop._run(self.bare.__aexit__(*error))


class AlwaysTogether(InALoop):
    """An asynchronous client that sends even a lone pop the way it sends many."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._client._batching.several_pops = 1


def _bare(value: Any) -> Any:
    return value.bare if isinstance(value, Looped) else value


def _awaitable(value: Any) -> Any:
    if not callable(value):
        return value

    async def handler(message: Any) -> Any:
        return value(message)

    return handler


class Transports(NamedTuple):
    """How a transport is made, for either kind of client."""

    synchronous: Callable[[Settings], Transport]
    asynchronous: Callable[[Settings], AsyncTransport]


class Way(NamedTuple):
    """A kind of client, and the transport that it runs operations through."""

    client: Callable[..., Any]
    transports: Transports

    def open(self, dsn: str, **options: Any) -> Any:
        """Open a client."""
        named = ("timeout", "connect_timeout", "pool_size")
        settings = resolve({"url": dsn, **{name: options.get(name) for name in named}})
        make = self.transports.synchronous if self.client is Client else self.transports.asynchronous
        return self.client(dsn, transport=make(settings), **options)


# One line for each transport.
HTTP = Transports(Gateway, AsyncGateway)
POSTGRES = Transports(Database, AsyncDatabase)
WARM = Transports(warm.transport, warm.async_transport)
RECORDED = Transports(lambda to: Recorder(Database(to)), lambda to: AsyncRecorder(AsyncDatabase(to)))

ONE_BY_ONE = partial(InALoop, pop_batching=False, push_batching=False)
WAYS = {"sync": Way(Client, POSTGRES), "async": Way(InALoop, POSTGRES)}
# Other ways to push and to pop, with each option on in one and off in another, for the tests to which they make a
# difference.
PUSHING = {"async, one by one": Way(ONE_BY_ONE, POSTGRES)}
POPPING = {"async, always together, no check": Way(partial(AlwaysTogether, pending_check=False), POSTGRES)}
# With the windows of a dispatcher that runs beside; every group has one, unless it says that it does not want it.
WINDOWS = {"sync, warm": Way(Client, WARM), "async, warm": Way(InALoop, WARM)}
# What looks behind the claims of a group, which with a window are those of its dispatcher, or changes them in SQL.
WINDOWED = {"groups_attempts", "groups_handlers", "groups_settling", "groups_workers", "items"}
LOOKS_BEHIND = {
    "test_a_message_waits_is_in_flight_and_is_done",
    "test_of_several_groups_the_first_result_counts_or_that_of_one",
    "test_what_the_handler_raised_at_the_last_attempt_is_raised",
    "test_a_backoff_that_would_be_astronomic_is_the_limit",
    "test_an_acknowledgement_that_could_not_be_written_may_be_tried_again",
    "test_many_partitions_are_acknowledged_at_once",
    "test_one_lost_lease_does_not_keep_the_other_claims_of_a_batch",
    # Those that ask for the state of what is in a window, or for its claims, or pop from PostgreSQL alone.
    "test_a_foreign_lease_changes_nothing_and_says_so",
    "test_a_message_that_waits_is_cancelled",
    "test_each_group_has_its_own_state_and_one_that_came_later_has_none",
    "test_one_that_is_in_flight_is_so_and_cancelled",
    "test_renewing_extends_the_lease_from_now",
    "test_there_is_an_answer_for_what_ended_without_a_result",
    "test_what_a_handler_notes_is_shown",
    "test_whoever_waits_is_woken_when_a_result_is_kept",
}
# For files that have every operation of a client; tests/conformance/test_recorded.py checks that.
THROUGH_RECORDER = {
    "sync, recorded": Way(Client, RECORDED),
    "async, always together, recorded": Way(AlwaysTogether, RECORDED),
}
OVER_HTTP = {"sync, http": Way(Client, HTTP), "async, http": Way(InALoop, HTTP)}
# What `make test` runs of them.
HTTP_FILES = {
    "sync, http": {"health", "keys", "pushing", "transactions"},
    "async, http": {"groups_operating", "schedules"},
}
# The one thing that a gateway cannot do: SQL of the caller's own, or a claim, in a transaction. The file cuts the
# connection to PostgreSQL; tests/integration/gateway/test_lost_answers.py cuts that to the gateway.
NOT_OVER_HTTP = {
    "repeated_pushes",
    "test_what_is_not_a_connection_is_refused",
    "test_claim_own_writes_pushes_and_ack_commit_together",
    "test_an_error_takes_back_claim_own_writes_pushes_and_ack",
    "test_a_batch_that_was_popped_outside_is_acknowledged_inside",
    "test_an_ack_whose_lease_is_gone_takes_the_whole_transaction_back",
    "test_a_claim_that_is_not_acknowledged_inside_is_held_after_the_commit",
    "test_nothing_to_pop_in_a_transaction_is_none",
    "test_a_batch_that_was_popped_inside_is_settled_by_itself_after_the_block",
    "test_a_batch_whose_claim_was_rolled_back_is_lost",
    "test_nothing_that_settles_a_batch_lets_the_transaction_commit_before_it_is_on_disk",
}
EVERY_OPERATION = {
    *("delayed", "first_use", "health", "keys", "monitoring", "operating", "pushing", "queues", "schedules"),
    "transactions",
    *("groups_dead_letters", "groups_operating", "groups_prefetch", "groups_seeking", "groups_transactions"),
}
# `make conformance` adds these, and runs all tests with all ways.
OTHERS = {
    "async, one by one, recorded": Way(ONE_BY_ONE, RECORDED),
    "async, no check": Way(partial(InALoop, pending_check=False), POSTGRES),
    "async, neither": Way(partial(ONE_BY_ONE, pending_check=False), POSTGRES),
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test with every way in that makes a difference to it, or with all there are."""
    if "way" in metafunc.fixturenames:
        every, file = metafunc.config.getoption("every_way"), metafunc.module.__name__.rpartition(".test_")[2]
        groups = file.startswith("groups")
        ways = dict(WAYS)
        if every or groups or file in ("dedupe", "repeated_pushes"):
            ways |= PUSHING
        if every or groups:
            ways |= POPPING
        if file in WINDOWED and metafunc.function.__name__ not in LOOKS_BEHIND:
            # Not in `make test`: the dispatcher of the database that these tests share does not see at once that a
            # group was deleted and made anew.
            ways |= WINDOWS if every else {}
        if every or file in EVERY_OPERATION:
            ways |= THROUGH_RECORDER
        if file in EVERY_OPERATION and not every:
            # The recorder wraps what these use: one run of the two will do.
            for same in ("sync", *(POPPING if groups else ("async",))):
                del ways[same]
        if file not in NOT_OVER_HTTP and metafunc.function.__name__ not in NOT_OVER_HTTP:
            ways |= {name: way for name, way in OVER_HTTP.items() if every or file in HTTP_FILES[name]}
        if every:
            ways |= OTHERS
        metafunc.parametrize("way", list(ways.values()), ids=list(ways))


@pytest.fixture(scope="package")
def shared_gateway(shared_dsn: str) -> Iterator[RunningGateway]:
    """A gateway of the database that all tests share; gone with the last of these, since others count sessions."""
    with gateway(shared_dsn) as running:
        yield running


@pytest.fixture(autouse=True)
def _dispatcher(request: pytest.FixtureRequest) -> None:
    """A dispatcher where windows are tested; it stays for the whole run."""
    way = request.getfixturevalue("way") if "way" in request.fixturenames else None
    if way is not None and way.transports is WARM:
        warm.begin(request.getfixturevalue("dsn"))


@pytest.fixture
def open_api(way: Way, dsn: str, request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """Open a client of the fresh penstock, with options of one's own."""
    opened: list[Any] = []
    address = dsn
    if way.transports is HTTP:
        shared: RunningGateway = request.getfixturevalue("shared_gateway")
        address = shared.url
        # Emptying the database has cut the gateway's connections, too: let it notice.
        for _ in range(3):
            shared.ask("GET", "//readyz")

    def open_one(**options: Any) -> Any:
        opened.append(way.open(address, **options))
        return opened[-1]

    yield open_one
    for client in opened:
        client.close()


@pytest.fixture
def api(open_api: Callable[..., Any]) -> Any:
    """A client of the fresh penstock."""
    return open_api()


@pytest.fixture
def sound(api: Any) -> Iterator[None]:
    """After the test, state and log must agree."""
    yield
    assert [check for check in api.verify() if check.violations] == []


@dataclass(frozen=True)
class Everything:
    """All that a client can see of a penstock."""

    queues: list[QueueInfo]
    partitions: dict[str, list[PartitionInfo]]
    values: dict[tuple[str, str], list[bytes]]


def everything(api: Any) -> Everything:
    queues = api.queues()
    partitions = {queue.name: api.partitions(queue.name) for queue in queues}
    values = {
        (queue, partition.name): [message.value for message in api.read(queue, partition.name)]
        for queue, found in partitions.items()
        for partition in found
    }
    return Everything(queues, partitions, values)


@pytest.fixture
def unchanged(api: Any) -> Callable[[], AbstractContextManager[None]]:
    """A block that must leave queues, partitions, positions and messages as they were."""

    @contextmanager
    def block() -> Iterator[None]:
        before = everything(api)
        yield
        assert everything(api) == before

    return block
