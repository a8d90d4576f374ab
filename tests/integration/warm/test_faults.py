"""Whatever happens to Valkey or to a dispatcher: nothing is lost, order is kept, and work goes on."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest

from penstock import Client
from penstock.broker.operations.claiming import Pop
from penstock.settings import resolve
from penstock.valkey import find
from penstock.warm.keys import keys_of
from penstock.warm.leases import new_token
from penstock.warm.library import Library, library
from penstock.warm.links import GONE, HALTED, LATE, STALE, Link, Refused
from penstock.warm.transport import WarmTransport
from windows import SHORT_TERMS, ValkeyServer, dispatching, wait_for

WARM: dict[str, Any] = {"warm": True, "lease_time": 2.0}
COUNT = 400
FAST = pytest.mark.parametrize("terms", [SHORT_TERMS], ids=["fast"])


def windows_of(api: Client) -> Any:
    return cast(WarmTransport, api._transport).windows


def handle_all(api: Client, count: int, each: Callable[[int], None] = lambda handled: None) -> list[tuple[str, int]]:
    """Handle messages until all are done; returns partition and value of each, in the order of their handling."""
    seen: list[tuple[str, int]] = []
    done: set[tuple[str, int]] = set()
    deadline = time.monotonic() + 60
    while len(done) < count:
        assert time.monotonic() < deadline, f"{len(done)} of {count}"
        batch = api.pop("orders", "work", max_messages=5, wait=1)
        if batch is None:
            continue
        handled = [(message.partition, message.json()) for message in batch]
        each(len(done))
        seen += handled
        try:
            batch.ack()
        except Exception:
            continue
        done |= set(handled)
    return seen


def in_order(seen: list[tuple[str, int]]) -> bool:
    """Say whether no message came before one that precedes it in its partition."""
    highest: dict[str, int] = {}
    for partition, number in seen:
        if number > highest.get(partition, -1) + 1:
            return False
        highest[partition] = max(number, highest.get(partition, -1))
    return True


def push_all(api: Client) -> None:
    for partition in range(4):
        api.push("orders", list(range(COUNT // 4)), partition=f"p{partition}")


@FAST
@pytest.mark.parametrize("mode", ["shared", "ordered"])
def test_a_wipe_in_the_middle_loses_nothing_and_keeps_the_order(
    api: Client, loaded: Callable[..., int], valkey_server: ValkeyServer, mode: str
) -> None:
    api.create_group("orders", "work", mode=mode, **WARM)
    push_all(api)
    loaded("orders", "work", COUNT)
    wiped: list[int] = []

    def wipe(done: int) -> None:
        if done >= COUNT // 3 and not wiped:
            wiped.append(done)
            valkey_server.client().flushall()

    seen = handle_all(api, COUNT, wipe)

    assert set(seen) == {(f"p{partition}", n) for partition in range(4) for n in range(COUNT // 4)}
    assert mode == "shared" or in_order(seen)
    wait_for(lambda: api.lag("orders", "work") == 0)
    assert [check for check in api.verify() if check.violations] == []


@FAST
@pytest.mark.parametrize("key", ["meta", "ready", "claims", "due", "done", "q:"])
@pytest.mark.parametrize("mode", ["shared", "ordered"])
def test_a_key_that_somebody_deletes_loses_nothing_and_keeps_the_order(
    api: Client, loaded: Callable[..., int], valkey_server: ValkeyServer, mode: str, key: str
) -> None:
    api.create_group("orders", "work", mode=mode, **WARM)
    push_all(api)
    loaded("orders", "work", COUNT)
    forgotten = api.pop("orders", "work", max_messages=5)
    deleted: list[bytes] = []

    def delete(done: int) -> None:
        if done >= COUNT // 3 and not deleted:
            deleted.extend(name for name in valkey_server.client().keys("penstock:*") if f":{key}".encode() in name)
            valkey_server.client().delete(*deleted)

    def nothing_is_left() -> bool:
        # What was acknowledged, and PostgreSQL was not told of, comes again.
        if (again := api.pop("orders", "work", max_messages=100)) is not None:
            again.ack()
        return api.lag("orders", "work") == 0

    assert forgotten is not None
    seen = handle_all(api, COUNT, delete)

    assert deleted
    assert set(seen) == {(f"p{partition}", n) for partition in range(4) for n in range(COUNT // 4)}
    assert mode == "shared" or in_order(seen)
    wait_for(nothing_is_left)
    assert [check for check in api.verify() if check.violations] == []


@FAST
def test_what_lets_clients_find_a_window_comes_again_when_somebody_deletes_it(
    api: Client, loaded: Callable[..., int], valkey_server: ValkeyServer
) -> None:
    api.create_group("orders", "work", **WARM)
    push_all(api)
    loaded("orders", "work", COUNT)
    valkey = valkey_server.client()
    listed = [name for name in valkey.keys("penstock:*") if name.endswith(b":windows")]
    valkey.delete(*listed)

    assert listed
    wait_for(lambda: [found.group for found in windows_of(api).all("orders")] == ["work"], patience=20.0)


@FAST
def test_while_valkey_is_dead_postgres_serves_alone_and_windows_come_back(
    api: Client, loaded: Callable[..., int], valkey_server: ValkeyServer
) -> None:
    api.create_group("orders", "work", mode="shared", **WARM)
    push_all(api)
    loaded("orders", "work", COUNT)
    killed: list[int] = []

    def kill(done: int) -> None:
        if done >= COUNT // 4 and not killed:
            killed.append(done)
            valkey_server.kill()

    seen = handle_all(api, COUNT, kill)
    valkey_server.start()
    api.push("orders", [0], partition="later")

    assert len(set(seen)) == COUNT
    assert loaded("orders", "work", 1) == 1
    assert [check for check in api.verify() if check.violations] == []


def test_a_restart_from_an_old_snapshot_brings_back_nothing_that_is_done(dsn: str) -> None:
    server = ValkeyServer("--save", "3600 1000000")
    try:
        with dispatching(dsn, server.url, SHORT_TERMS), Client(dsn, valkey_url=server.url) as api:
            api.create_group("orders", "work", mode="shared", **WARM)
            api.push("orders", list(range(10)), partition="a")
            group_id = wait_for(lambda: windows_of(api).find("orders", "work"))
            wait_for(lambda: windows_of(api).fill(group_id).items == 10)
            server.client().save()
            batch = api.pop("orders", "work")
            assert batch is not None
            batch.ack()
            assert api.lag("orders", "work") == 0
            server.kill()
            server.start()

            with pytest.raises(Refused) as refused:
                Link(find(resolve({"url": dsn, "valkey_url": server.url}))).call(  # type: ignore[arg-type]
                    "take", windows_of(api).keys(group_id), new_token(), 10, 10, 1000, 1000, 0, "", 0
                )
            assert refused.value.code == GONE
            assert api.pop("orders", "work", wait=2) is None
    finally:
        server.close()


def test_a_load_that_comes_late_or_from_a_former_dispatcher_is_refused(api: Client, loaded: Callable[..., int]) -> None:
    api.create_group("orders", "work", mode="shared", **WARM)
    api.push("orders", [1], partition="a")
    loaded("orders", "work")
    windows = windows_of(api)
    keys = windows.keys(windows.find("orders", "work"))
    epoch = windows.link.run("HGET", keys.meta, "epoch")

    with pytest.raises(Refused) as late:
        windows.link.call("load", keys, epoch, 7, 0)
    with pytest.raises(Refused) as stale:
        windows.link.call("load", keys, int(epoch) - 1, 2, 0)

    assert (late.value.code, stale.value.code) == (LATE, STALE)


def test_a_take_whose_reply_was_lost_gets_the_same_again_and_strands_nothing(
    api: Client, loaded: Callable[..., int]
) -> None:
    api.create_group("orders", "work", mode="shared", **WARM)
    api.push("orders", list(range(5)), partition="a")
    loaded("orders", "work", 5)
    windows = windows_of(api)
    group_id, token, wanted = windows.find("orders", "work"), new_token(), Pop("orders", "work", max_messages=3)

    first, again = windows.take(group_id, token, wanted), windows.take(group_id, token, wanted)
    rest = windows.take(group_id, new_token(), wanted)

    assert first.runs == again.runs
    assert [run.start for run in again.runs + rest.runs] == [0, 3]


def test_with_a_full_memory_acks_pass_and_work_goes_on(
    api: Client, loaded: Callable[..., int], valkey_server: ValkeyServer
) -> None:
    api.create_group("orders", "work", mode="shared", **WARM)
    push_all(api)
    loaded("orders", "work", COUNT)
    client = valkey_server.client()
    client.config_set("maxmemory", 1)
    try:
        api.push("orders", list(range(50)), partition="more")
        seen = handle_all(api, COUNT + 50)
    finally:
        client.config_set("maxmemory", 0)

    assert len(seen) == len(set(seen)) == COUNT + 50
    assert api.lag("orders", "work") == 0


def link_with_a_clock(valkey_url: str, dsn: str) -> Link:
    """Return a link to the same functions, by a clock that the test sets."""
    text = library().code.split("\n", 1)[1].replace(library().prefix, "FORMAT")
    real = "local t = server.call('TIME')\n  return t[1] * 1000 + math.floor(t[2] / 1000)"
    assert real in text
    address = find(resolve({"url": dsn, "valkey_url": valkey_url}))
    assert address is not None
    return Link(address, Library(text.replace(real, "return tonumber(server.call('GET', 'penstock:test:clock'))")))


def test_a_clock_that_jumps_ends_no_lease(valkey_url: str, dsn: str) -> None:
    link = link_with_a_clock(valkey_url, dsn)
    keys, clock = keys_of("test", 1), 1_000_000_000_000

    def at(moment: int) -> None:
        link.run("SET", "penstock:test:clock", moment)

    at(clock)
    link.call("attach", keys, 1, "g", "shared", 100, 10_000, "penstock:test", "q", 0)
    link.call("beat", keys, 1, 5000, 100, 10_000, 2000, 0)
    link.call("load", keys, 1, 1, 0, 1, "lease 7 1 0 1 1 5 name", 1, b"x")
    token = new_token()
    assert link.call("take", keys, token, 1, 1, 1000, 0, 0, "", 0)[3] == [b"lease 7 1 0 1 1 5 name", 0, 1, 1, b"x"]

    at(clock + 3_600_000)
    forward = link.call("expire", keys, 1, 10)[0]
    at(clock - 3_600_000)
    back = link.call("expire", keys, 1, 10)[0]
    at(clock - 3_600_000 + 1000)
    early = link.call("expire", keys, 1, 10)[0]
    at(clock - 3_600_000 + 2500)
    late = link.call("expire", keys, 1, 10)[0]

    assert (forward, back, early, late) == (0, 0, 0, 1)


def test_after_a_long_silence_postgres_has_the_last_word_on_leases(valkey_url: str, dsn: str) -> None:
    link = link_with_a_clock(valkey_url, dsn)
    keys, clock = keys_of("test", 1), 1_000_000_000_000
    link.run("SET", "penstock:test:clock", clock)
    link.call("attach", keys, 1, "g", "shared", 100, 10_000, "penstock:test", "q", 0)
    link.call("beat", keys, 1, 5000, 100, 10_000, 60_000, 0)
    link.call("load", keys, 1, 1, 0, 1, "lease 7 1 0 1 1 5 name", 1, b"x")
    token = new_token()
    link.call("take", keys, token, 1, 1, 1000, 0, 0, "", 0)

    # Long after every dispatcher has died, and after PostgreSQL has given the claim to somebody else.
    link.run("SET", "penstock:test:clock", clock + 3_600_000)
    with pytest.raises(Refused) as refused:
        link.call("settle", keys, "ack", token, 1, -1, -1)
    renewed = link.call("renew", keys, 0, 0, token)

    assert refused.value.code == HALTED
    # Whoever renews is to ask PostgreSQL, too.
    assert renewed[2] == 0


@contextmanager
def dispatcher_process(dsn: str, url: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock.cli", "dispatch"],
        env={**os.environ, "PENSTOCK_URL": dsn, "PENSTOCK_VALKEY_URL": url},
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_a_dispatcher_that_stopped_is_replaced_and_does_no_harm_when_it_wakes(dsn: str, valkey_url: str) -> None:
    with Client(dsn, valkey_url=valkey_url) as api, dispatcher_process(dsn, valkey_url) as stopped:
        api.create_group("orders", "work", **WARM)
        push_all(api)
        wait_for(lambda: [each for each in api.windows() if each.live and each.items], 30)
        held = api.pop("orders", "work", lease=60)
        assert held is not None
        stopped.send_signal(signal.SIGSTOP)
        with dispatching(dsn, valkey_url):
            wait_for(lambda: api.windows()[0].epoch == 2, 30)
            held.ack()
            waking = threading.Timer(0.2, lambda: stopped.send_signal(signal.SIGCONT))
            waking.start()
            seen = [(message.partition, message.json()) for message in held]
            rest = handle_all(api, COUNT - len(seen))

            assert in_order(seen + rest)
            assert len(set(seen + rest)) == COUNT == len(seen + rest)
            assert api.lag("orders", "work") == 0
            assert [check for check in api.verify() if check.violations] == []


@FAST
def test_a_valkey_that_was_stopped_hands_nothing_out_until_a_dispatcher_is_back(
    api: Client, loaded: Callable[..., int], valkey_server: ValkeyServer
) -> None:
    api.create_group("orders", "work", mode="shared", warm=True)
    push_all(api)
    loaded("orders", "work", COUNT)
    process = valkey_server.process
    assert process is not None
    process.send_signal(signal.SIGSTOP)
    waking = threading.Timer(11.0, lambda: process.send_signal(signal.SIGCONT))
    waking.start()

    seen = handle_all(api, COUNT)
    waking.join()

    # What the dispatcher gave back meanwhile is not in the window any more.
    assert len(seen) == len(set(seen)) == COUNT
    assert [check for check in api.verify() if check.violations] == []


@FAST
def test_that_valkey_is_away_is_said_once_and_changes_the_state_once(
    api: Client, loaded: Callable[..., int], valkey_server: ValkeyServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "penstock.warm")
    api.create_group("orders", "work", mode="shared", **WARM)
    api.push("orders", [1], partition="a")
    loaded("orders", "work", 1)

    def said(words: str) -> int:
        return len([record for record in caplog.records if words in record.getMessage()])

    valkey_server.kill()
    wait_for(lambda: api.windows()[0].state == "away" and not api.windows()[0].live)
    before = api.windows()[0]
    # Until it was tried again and again.
    wait_for(lambda: said("no look for groups with windows") >= 3 or said("the group alone") >= 3)
    after = api.windows()[0]
    valkey_server.start()

    assert said("PostgreSQL serves the group alone") == 1
    assert (after.state, after.epoch, after.transitions) == ("away", before.epoch, before.transitions)


def test_a_window_that_begins_with_a_full_memory_stays_and_says_so_once(
    dsn: str, valkey_url: str, valkey_server: ValkeyServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "penstock.warm")
    client = valkey_server.client()
    with Client(dsn, valkey_url=valkey_url) as api:
        # The functions are there.
        with dispatching(dsn, valkey_url):
            api.create_group("orders", "work", mode="shared", **WARM)
            wait_for(lambda: windows_of(api).all())
        client.config_set("maxmemory", 1)
        try:
            with dispatching(dsn, valkey_url):
                (found,) = wait_for(lambda: windows_of(api).all())
                api.push("orders", list(range(5)), partition="a")
                wait_for(lambda: any("cannot be refilled" in record.getMessage() for record in caplog.records))
                batch = api.pop("orders", "work", wait=10)
                assert batch is not None
                batch.ack()
                client.config_set("maxmemory", 0)
                api.push("orders", [7], partition="a")
                wait_for(lambda: windows_of(api).fill(found.group_id).items == 1)
        finally:
            client.config_set("maxmemory", 0)

    ours = [record.levelname for record in caplog.records if record.name == "penstock.warm"]
    assert [level for level in ours if level != "INFO"] == ["WARNING"]


@FAST
def test_what_a_worker_of_an_ordered_group_has_stays_its_own_when_the_window_is_attached_anew(
    api: Client, loaded: Callable[..., int], valkey_server: ValkeyServer
) -> None:
    api.create_group("orders", "work", warm=True, lease_time=60.0)
    api.push("orders", [1, 2, 3], partition="a")
    loaded("orders", "work", 3)
    held = api.pop("orders", "work", max_messages=1)
    assert held is not None
    before = api.windows()[0].epoch

    valkey_server.client().flushall()
    wait_for(lambda: api.windows()[0].epoch != before and windows_of(api).all())
    held.renew()
    held.ack()

    assert api.lag("orders", "work") == 2
    assert [check for check in api.verify() if check.violations] == []


def test_leases_are_renewed_again_and_again_while_valkey_is_away(
    dsn: str, valkey_url: str, valkey_server: ValkeyServer
) -> None:
    with dispatching(dsn, valkey_url, SHORT_TERMS), Client(dsn, valkey_url=valkey_url) as api:
        api.create_group("orders", "work", **WARM)
        api.push("orders", [1, 2], partition="a")
        wait_for(lambda: [each for each in api.windows() if each.items == 2])
        held = api.pop("orders", "work", max_messages=1)
        assert held is not None
        valkey_server.kill()
        try:
            over = time.monotonic() + 2 * WARM["lease_time"]
            while time.monotonic() < over:
                held.renew()
                time.sleep(0.3)
            held.ack()
        finally:
            valkey_server.start()

        assert api.lag("orders", "work") == 1


def begin_ordered(api: Client, lease_time: float) -> None:
    api.create_group("orders", "work", warm=True, lease_time=lease_time)
    api.push("orders", [1, 2], partition="a")
    wait_for(lambda: [each for each in api.windows() if each.live and each.items == 2])


def test_a_message_of_a_lost_window_is_nobody_elses_while_a_worker_of_an_ordered_group_renews_it(
    dsn: str, valkey_url: str, valkey_server: ValkeyServer
) -> None:
    with dispatching(dsn, valkey_url, SHORT_TERMS), Client(dsn, valkey_url=valkey_url) as api:
        begin_ordered(api, 1.0)
        held = api.pop("orders", "work", max_messages=1)
        assert held is not None
        valkey_server.client().flushall()
        # Longer than claims of the window wait for workers of which nobody hears.
        over = time.monotonic() + 1.0 + SHORT_TERMS.grant + 4.0
        others = []
        with Client(dsn, valkey_url=valkey_url) as other:
            while time.monotonic() < over:
                held.renew()
                others.append(other.pop("orders", "work", wait=0.2))
            held.ack()
            rest = wait_for(lambda: other.pop("orders", "work", wait=1))

        assert set(others) == {None}
        assert [(message.json(), message.attempt) for message in rest] == [(2, 1)]


def test_a_dispatcher_that_takes_over_after_a_wipe_waits_for_workers_of_an_ordered_group(
    dsn: str, valkey_url: str, valkey_server: ValkeyServer
) -> None:
    with Client(dsn, valkey_url=valkey_url) as api:
        with dispatcher_process(dsn, valkey_url) as first:
            begin_ordered(api, 60.0)
            held = api.pop("orders", "work", max_messages=1)
            assert held is not None
            valkey_server.client().flushall()
            wait_for(lambda: api.windows()[0].epoch == 2 and windows_of(api).all())
            keys = windows_of(api).keys(api.windows()[0].group_id)
            wait_for(lambda: windows_of(api).link.run("HGET", keys.meta, "lost") != b"0")
            first.kill()
        with dispatching(dsn, valkey_url), Client(dsn, valkey_url=valkey_url) as other:
            wait_for(lambda: api.windows()[0].epoch == 3)
            assert other.pop("orders", "work", wait=2) is None
            held.ack()

            assert api.lag("orders", "work") == 1


def test_an_ordered_group_goes_on_after_the_leases_of_its_workers_while_valkey_is_away(
    dsn: str, valkey_url: str, valkey_server: ValkeyServer
) -> None:
    with dispatching(dsn, valkey_url, SHORT_TERMS), Client(dsn, valkey_url=valkey_url) as api:
        begin_ordered(api, 1.0)
        valkey_server.kill()
        try:
            batch = api.pop("orders", "work", wait=30)
        finally:
            valkey_server.start()

        assert batch is not None
        assert [(message.json(), message.attempt) for message in batch] == [(1, 1), (2, 1)]
        assert [check for check in api.verify() if check.violations] == []


@FAST
def test_a_connection_that_breaks_costs_a_shared_group_nothing(
    api: Client, loaded: Callable[..., int], valkey_server: ValkeyServer
) -> None:
    api.create_group("orders", "work", mode="shared", warm=True, lease_time=30.0)
    api.push("orders", list(range(10)), partition="a")
    loaded("orders", "work", 10)
    held = api.pop("orders", "work", max_messages=3)
    assert held is not None
    before = api.windows()[0].epoch

    valkey_server.client().client_kill_filter(_type="normal", skipme=True)
    wait_for(lambda: api.windows()[0].epoch != before)
    # As long as takes of a window that is lost go on.
    time.sleep(SHORT_TERMS.grant + 1)
    held.ack()
    seen = handle_all(api, 7)

    assert sorted(number for _, number in seen) == list(range(3, 10))
    assert api.lag("orders", "work") == 0
