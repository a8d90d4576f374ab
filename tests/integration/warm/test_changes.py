"""What changes about a group while workers have something of its window: what they have stays theirs."""

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest

from penstock import AsyncClient, Client, LeaseLost
from penstock.broker.operations.claiming import Pop
from penstock.broker.operations.warm import ClaimForWindow, GetDatabaseIdentity, HoldWarmLease, ListWarmGroups
from penstock.postgres.async_database import AsyncDatabase
from penstock.settings import resolve
from penstock.valkey import find
from penstock.warm.kept import KeptWindow
from penstock.warm.links import AsyncLink, Refused
from penstock.warm.loading import Loader
from penstock.warm.transport import WarmTransport
from proxies import Proxy
from windows import TERMS, RunningDispatcher, ValkeyServer, dispatching, wait_for

WARM: dict[str, Any] = {"warm": True, "backoff_initial": 0.05, "backoff_max": 0.1}
MODES = pytest.mark.parametrize("mode", ["shared", "ordered"])


def is_warm(batch: Any) -> bool:
    return all(claim.lease_id.version == 8 for claim in batch.claims)


def windows_of(api: Client) -> Any:
    return cast(WarmTransport, api._transport).windows


def rest_of(api: Client, count: int) -> list[tuple[int, int]]:
    """Handle so many messages; returns value and attempt of each."""
    seen: list[tuple[int, int]] = []
    while len(seen) < count:
        batch = wait_for(lambda: api.pop("orders", "work", wait=1))
        seen += [(message.json(), message.attempt) for message in batch]
        batch.ack()
    return seen


def pause_and_resume(api: Client, ids: list[Any]) -> None:
    api.pause_group("orders", "work")
    api.resume_group("orders", "work")


def configure(api: Client, ids: list[Any]) -> None:
    api.configure_group("orders", "work", max_attempts=7)


def cancel_another(api: Client, ids: list[Any]) -> None:
    api.cancel(ids[9])


@pytest.mark.parametrize("terms", [TERMS._replace(leave_within=30.0)], ids=["patient"])
@MODES
@pytest.mark.parametrize("change", [pause_and_resume, configure, cancel_another])
def test_what_is_in_flight_can_be_acknowledged_after_a_change(
    api: Client, loaded: Callable[..., int], mode: str, change: Callable[[Client, list[Any]], None]
) -> None:
    api.create_group("orders", "work", mode=mode, **WARM)
    ids = api.push("orders", list(range(10)), partition="a").ids
    loaded("orders", "work", 10)
    held = api.pop("orders", "work", max_messages=3)
    assert held is not None
    assert is_warm(held)

    change(api, ids)
    held.ack()
    left = 6 if change is cancel_another else 7
    seen = rest_of(api, left)

    assert [message.json() for message in held] == [0, 1, 2]
    assert sorted(seen) == [(number, 1) for number in range(3, 3 + left)]
    wait_for(lambda: api.pop("orders", "work") is None and api.lag("orders", "work") == 0)
    assert [check for check in api.verify() if check.violations] == []


def test_a_cancel_that_comes_too_late_leaves_windows_alone(api: Client, loaded: Callable[..., int]) -> None:
    api.create_group("orders", "work", mode="shared", **WARM)
    ids = api.push("orders", list(range(2)), partition="a").ids
    loaded("orders", "work", 2)
    first = api.pop("orders", "work", max_messages=1)
    assert first is not None
    first.ack()
    assert api.lag("orders", "work") == 1
    keys = windows_of(api).keys(windows_of(api).find("orders", "work"))

    api.cancel(ids[0])

    assert windows_of(api).link.run("HGET", keys.meta, "halts") == b"0"
    second = api.pop("orders", "work")
    assert second is not None
    assert is_warm(second)


def test_a_heartbeat_that_began_before_a_pause_does_not_let_takes_go_on(
    api: Client, loaded: Callable[..., int], dispatcher: RunningDispatcher
) -> None:
    api.create_group("orders", "work", mode="shared", **WARM)
    api.push("orders", list(range(2)), partition="a")
    loaded("orders", "work", 2)
    dispatcher.close()
    windows = windows_of(api)
    keys, link = windows.keys(api.windows()[0].group_id), windows.link
    link.call("attach", keys, 1000, "g", "shared", 100, 10_000, "penstock:test", "orders", 0)
    granted = link.call("beat", keys, 1000, 5000, 100, 10_000, 2000, 0)

    link.call("halt", keys)
    late = link.call("beat", keys, 1000, 5000, 100, 10_000, 2000, granted[4])

    assert windows.fill(api.windows()[0].group_id).live is False
    assert late[4] == granted[4] + 1
    link.call("beat", keys, 1000, 5000, 100, 10_000, 2000, late[4])
    assert windows.fill(api.windows()[0].group_id).live is True


def test_what_workers_may_have_of_a_lost_window_is_known_from_the_moment_in_which_it_is_replaced(
    api: Client, loaded: Callable[..., int], dispatcher: RunningDispatcher
) -> None:
    api.create_group("orders", "work", **WARM)
    api.push("orders", 0)
    loaded("orders", "work", 1)
    windows = windows_of(api)
    group_id = api.windows()[0].group_id
    dispatcher.close()
    windows.link.run("DEL", windows.keys(group_id).meta)
    given = "shared", 100, 10_000, "penstock:test", "orders"

    def attach(epoch: int, ms: int) -> list[int]:
        return windows.link.call("attach", windows.keys(group_id), epoch, "g", *given, ms)  # type: ignore[no-any-return]

    assert attach(1000, 60_000) == [0, 0, 0, 0, 1]
    # It died before it did anything else.
    assert attach(1001, 0) == [1, 0, 0, 0, 1]
    windows.link.call("lose", windows.keys(group_id), 1001, 0)
    assert attach(1002, 0) == [1, 0, 0, 0, 0]


def test_a_nack_brings_back_what_is_not_done_and_nothing_else(api: Client, loaded: Callable[..., int]) -> None:
    api.create_group("orders", "work", mode="shared", **WARM)
    api.push("orders", list(range(5)), partition="a")
    loaded("orders", "work", 5)
    batch = api.pop("orders", "work")
    assert batch is not None
    assert is_warm(batch)

    for message in list(batch)[1:4]:
        batch.ack_message(message)
    batch.nack(error="no")
    seen = rest_of(api, 2)

    assert sorted(seen) == [(0, 2), (4, 2)]
    assert api.lag("orders", "work") == 0


@MODES
def test_after_a_seek_what_workers_have_counts_for_nothing(api: Client, loaded: Callable[..., int], mode: str) -> None:
    api.create_group("orders", "work", mode=mode, **WARM)
    api.push("orders", list(range(5)), partition="a")
    loaded("orders", "work", 5)
    held = api.pop("orders", "work", lease=60)
    assert held is not None
    group_id = api.windows()[0].group_id

    api.seek("orders", "work", 5)

    assert windows_of(api).fill(group_id).items == 0
    with pytest.raises(LeaseLost):
        held.ack()
    assert windows_of(api).fill(group_id).items == 0


def test_a_deleted_group_leaves_nothing_in_valkey(
    api: Client, loaded: Callable[..., int], valkey_server: ValkeyServer
) -> None:
    api.create_group("orders", "work", mode="shared", **WARM)
    api.push("orders", list(range(5)), partition="a")
    loaded("orders", "work", 5)
    assert valkey_server.client().keys("penstock:*")

    api.delete_group("orders", "work")

    wait_for(lambda: valkey_server.client().keys("penstock:*") == [])


def test_what_a_group_that_was_deleted_in_sql_left_is_removed_by_the_next_dispatcher(
    dsn: str, valkey_url: str, valkey_server: ValkeyServer, sql: Any
) -> None:
    with Client(dsn, valkey_url=valkey_url) as api:
        with dispatching(dsn, valkey_url):
            api.create_group("orders", "work", mode="shared", **WARM)
            api.push("orders", list(range(5)), partition="a")
            wait_for(lambda: api.windows()[0].items)
            held = api.pop("orders", "work", lease=60)
            assert held is not None
            found = windows_of(api).all()[0]
        windows_of(api).link.run("HSET", f"penstock:{{{windows_of(api).database()}}}:windows", "orders\x1fgone", 77)
        windows_of(api).link.run("HSET", windows_of(api).keys(77).meta, "epoch", 1)
        sql.execute("SELECT penstock.delete_group('orders', 'work')")
        with dispatching(dsn, valkey_url):
            wait_for(lambda: valkey_server.client().keys("penstock:*") == [])

    assert found.group == "work"


def test_the_end_of_a_window_hides_none_of_another_group_of_the_same_name(
    api: Client, loaded: Callable[..., int]
) -> None:
    api.create_group("orders", "work", mode="shared", **WARM)
    api.push("orders", [1], partition="a")
    loaded("orders", "work", 1)
    (before,) = windows_of(api).all()
    api.delete_group("orders", "work")
    api.create_group("orders", "work", mode="shared", **WARM)
    api.push("orders", [2], partition="a")
    loaded("orders", "work", 1)

    windows_of(api).discard(before)

    (after,) = windows_of(api).all()
    assert after.group_id != before.group_id


def test_nothing_of_another_group_of_the_same_name_is_claimed(dsn: str, sql: Any) -> None:
    with Client(dsn) as api:
        api.create_group("orders", "work", mode="shared", **WARM)
        api.push("orders", list(range(5)), partition="a")
        before = api.windows()[0].group_id
        sql.execute("SELECT * FROM penstock.hold_warm_lease(%s, 'me')", (before,))
        api.delete_group("orders", "work")
        api.create_group("orders", "work", mode="shared")

        rows = sql.execute("SELECT * FROM penstock.claim_for_window(%s, 1)", (before,)).fetchall()

        assert rows == []
        batch = api.pop("orders", "work")
        assert batch is not None
        assert len(batch) == 5


def test_a_lease_that_is_renewed_outlasts_the_dispatcher(
    api: Client, loaded: Callable[..., int], dispatcher: RunningDispatcher, sql: Any
) -> None:
    api.create_group("orders", "work", **WARM)
    api.push("orders", list(range(2)), partition="a")
    loaded("orders", "work", 2)
    held = api.pop("orders", "work", max_messages=1, lease=60)
    assert held is not None
    windows = windows_of(api)
    keys = windows.keys(api.windows()[0].group_id)
    # As if the dispatcher had not been heard of for long.
    windows.link.run("HSET", keys.meta, "until", "0", "halts", "99")
    sql.execute("UPDATE penstock.journal SET due_at = clock_timestamp() + interval '5 s' WHERE state = 'c'")

    held.renew(60)

    left = sql.execute(
        "SELECT extract(epoch FROM max(due_at) - clock_timestamp())::int FROM penstock.journal WHERE state = 'c'"
    ).fetchone()
    assert left[0] > 60


def test_acknowledgements_go_to_postgres_while_nobody_would_tell_it(
    api: Client, loaded: Callable[..., int], dispatcher: RunningDispatcher
) -> None:
    api.create_group("orders", "work", mode="shared", **WARM)
    api.push("orders", list(range(2)), partition="a")
    loaded("orders", "work", 2)
    held = api.pop("orders", "work", max_messages=1, lease=60)
    assert held is not None
    windows = windows_of(api)
    keys = windows.keys(api.windows()[0].group_id)

    # Until the dispatcher beats again nothing is granted.
    windows.link.run("HSET", keys.meta, "until", "0")
    held.ack()

    windows_before = windows.link.run("HGET", keys.meta, "unflushed")
    assert windows_before == b"0"
    assert api.lag("orders", "work") == 1


def test_a_dispatcher_ends_although_postgres_is_away(dsn: str, valkey_url: str) -> None:
    proxy = Proxy(dsn)
    terms = TERMS._replace(leave_within=0.5)
    try:
        with Client(dsn, valkey_url=valkey_url) as api:
            running = RunningDispatcher(proxy.dsn, valkey_url, terms)
            api.create_group("orders", "work", mode="shared", **WARM)
            api.push("orders", list(range(2)), partition="a")
            wait_for(lambda: [each for each in api.windows() if each.live and each.items])
            held = api.pop("orders", "work", max_messages=1)
            assert held is not None
            proxy.close()
            held.ack()

            running.close()

            assert not running.alive
    finally:
        proxy.close()


class Delayed:
    """A transport whose next answer to a heartbeat is held up after PostgreSQL has given it."""

    def __init__(self, transport: AsyncDatabase) -> None:
        self._transport = transport
        self.answered = asyncio.Event()
        self.delivered = asyncio.Event()
        self.delivered.set()

    async def run(self, operation: Any, timeout: float | None = None, *, retry: bool = True) -> Any:  # noqa: ASYNC109
        answer = await self._transport.run(operation, timeout, retry=retry)
        if isinstance(operation, HoldWarmLease) and not self.delivered.is_set() and not self.answered.is_set():
            self.answered.set()
            await self.delivered.wait()
        return answer


async def test_a_heartbeat_that_asked_before_a_change_lets_no_takes_go_on_after_it(
    dsn: str, valkey_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = resolve({"url": dsn, "valkey_url": valkey_url})
    address = find(settings)
    assert address is not None
    link = AsyncLink(address, starting=True)
    async with AsyncClient(dsn) as api, contextlib.AsyncExitStack() as closing:
        postgres = AsyncDatabase(settings)
        closing.push_async_callback(postgres.close)
        closing.push_async_callback(link.close)
        await api.create_group("orders", "work", **WARM)
        (group,) = await postgres.run(ListWarmGroups())
        database = await postgres.run(GetDatabaseIdentity())
        transport = Delayed(postgres)
        window = KeptWindow(cast(Any, transport), link, database, group, "me", TERMS)
        await window.hold_lease()
        await window.call("attach", window.epoch, "generation", "ordered", 100, 1000, "channel", "orders", 0)
        await window.beat()
        assert (await window.call("stats"))[0] == 1

        transport.delivered.clear()
        before = asyncio.create_task(window.beat())
        await transport.answered.wait()
        await api.pause_group("orders", "work")
        await window.call("halt")
        grants: list[int] = []
        monkeypatch.setattr(window, "call", recording(window.call, grants))
        after = asyncio.create_task(window.beat())
        await asyncio.wait({after}, timeout=0.5)
        transport.delivered.set()
        await asyncio.gather(before, after)

        # The first one is refused, because it does not know of the halt.
        assert grants[1:] == [0] * len(grants[1:])
        assert (await window.call("stats"))[0] == 0


def recording(call: Callable[..., Any], grants: list[int]) -> Callable[..., Any]:
    async def recorded(name: str, *arguments: Any) -> Any:
        if name == "beat":
            grants.append(arguments[1])
        return await call(name, *arguments)

    return recorded


def test_nothing_is_taken_in_the_very_millisecond_in_which_takes_end(
    api: Client, loaded: Callable[..., int], dispatcher: RunningDispatcher
) -> None:
    api.create_group("orders", "work", mode="shared", **WARM)
    api.push("orders", 1)
    loaded("orders", "work", 1)
    dispatcher.close()
    windows = windows_of(api)
    group_id = api.windows()[0].group_id
    keys, link = windows.keys(group_id), windows.link
    link.call("attach", keys, 1000, "g", "shared", 100, 10_000, "penstock:test", "orders", 0)
    for number in range(100):
        link.call("beat", keys, 1000, 0, 100, 10_000, 2000, 0)
        with pytest.raises(Refused):
            windows.take(group_id, f"token{number}", Pop("orders", "work"))


class Held:
    """A transport whose next claim for a window is held up after PostgreSQL has made it."""

    def __init__(self, transport: AsyncDatabase) -> None:
        self._transport = transport
        self.claimed = asyncio.Event()
        self.delivered = asyncio.Event()

    async def run(self, operation: Any, timeout: float | None = None, *, retry: bool = True) -> Any:  # noqa: ASYNC109
        answer = await self._transport.run(operation, timeout, retry=retry)
        if isinstance(operation, ClaimForWindow) and not self.claimed.is_set():
            self.claimed.set()
            await self.delivered.wait()
        return answer


@MODES
async def test_what_was_claimed_before_a_seek_is_not_loaded_after_it(dsn: str, valkey_url: str, mode: str) -> None:
    settings = resolve({"url": dsn, "valkey_url": valkey_url})
    address = find(settings)
    assert address is not None
    link = AsyncLink(address, starting=True)
    async with AsyncClient(dsn, valkey_url=valkey_url) as api, contextlib.AsyncExitStack() as closing:
        postgres = AsyncDatabase(settings)
        closing.push_async_callback(postgres.close)
        closing.push_async_callback(link.close)
        await api.create_group("orders", "work", mode=mode, **WARM)
        await api.push("orders", list(range(5)), partition="a")
        (group,) = await postgres.run(ListWarmGroups())
        database = await postgres.run(GetDatabaseIdentity())
        transport = Held(postgres)
        window = KeptWindow(cast(Any, transport), link, database, group, "me", TERMS)
        await window.hold_lease()
        await window.call("attach", window.epoch, "generation", mode, 100, 100_000, "channel", "orders", 0)
        await window.beat()
        await window.publish()

        loading = asyncio.create_task(Loader(window).refill())
        await transport.claimed.wait()
        await api.seek("orders", "work", 3)
        transport.delivered.set()
        await loading
        batch = await api.pop("orders", "work", wait=5)

        assert batch is not None
        assert [message.json() for message in batch] == [3, 4]
        await batch.ack()


@pytest.mark.parametrize("mode", ["shared", "ordered"])
def test_a_seek_reaches_the_window_of_a_client_whose_last_call_to_valkey_failed(
    api: Client, loaded: Callable[..., int], mode: str
) -> None:
    api.create_group("orders", "work", mode=mode, **WARM)
    api.push("orders", list(range(5)), partition="a")
    loaded("orders", "work", 5)
    link = windows_of(api).link
    link._state.failed(ConnectionError("broken"))
    assert not link.usable

    api.seek("orders", "work", 4)

    assert windows_of(api).fill(api.windows()[0].group_id).items <= 1
    assert rest_of(api, 1) == [(4, 1)]


def test_a_thread_that_waits_for_an_acknowledgement_does_not_forget_a_newer_one(
    api: Client, valkey_server: ValkeyServer
) -> None:
    api.create_group("orders", "work", **WARM)
    relay, windows = cast(WarmTransport, api._transport)._relay, windows_of(api)
    nobodys = 999_999_999
    done = windows.keys(nobodys).done
    with valkey_server.client() as dispatcher, ThreadPoolExecutor(1) as thread:
        older = dispatcher.xadd(done, {"done": ""})
        relay.note(nobodys, older)
        dispatcher.config_resetstat()
        waiting = thread.submit(relay.until_reported)
        wait_for(lambda: "cmdstat_xrange" in dispatcher.info("commandstats"))
        newer = dispatcher.xadd(done, {"done": ""})
        relay.note(nobodys, newer)
        dispatcher.xtrim(done, minid=newer, approximate=False)
        waiting.result()

        assert relay.waits
        dispatcher.delete(done)
        relay.until_reported()
        assert not relay.waits
