"""Clients with keys of a few queues: they push, consume and wait, and are told what they may not do."""

import json
import logging
import threading
from contextlib import ExitStack, closing
from functools import partial
from http.client import HTTPConnection
from urllib.parse import urlsplit

import pytest

from gateways import Answer, RunningGateway
from penstock import Client
from penstock.errors import Forbidden, NotFound, TimedOut, Unauthenticated
from penstock.gateway.access import keyring
from penstock.gateway.access.callers import Bucket

from ..served import eventually


def address(http: RunningGateway, key: str) -> str:
    return http.url.replace("http://", f"http://{key}@")


def test_a_client_consumes_with_a_key_of_one_queue(
    http: RunningGateway, owner: Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    producing = owner.create_api_key("producing", ["push:tasks-*"]).key
    working = owner.create_api_key("working", ["pop:tasks-*"]).key
    handled = []
    with Client(address(http, producing)) as producer, Client(address(http, working)) as worker:
        producer.push("tasks-1", [1, 2], key="k")
        producer.push("tasks-1", 3, partition="p")
        worker.process(
            "tasks-1", lambda message: handled.append(message.json()), idle_timeout=0.5, handle_signals=False
        )
        with pytest.raises(Forbidden, match="no scope push for queue 'orders'"):
            producer.push("orders", 1)
        with pytest.raises(Forbidden):
            worker.pop("orders", "g")
        with pytest.raises(Forbidden):
            producer.pop("tasks-1")
        with pytest.raises(Forbidden):
            worker.queues()
        with pytest.raises(Forbidden):
            worker.verify()
    assert sorted(handled) == [1, 2, 3]
    assert "forbidden" not in caplog.text
    assert not [record for record in caplog.records if "no scope" in record.getMessage()]


def test_a_client_finds_messages_of_its_queues_by_their_id_and_no_others(http: RunningGateway, owner: Client) -> None:
    own, other = (owner.push(queue, "x", partition="ids").ids[0] for queue in ("orders", "other"))
    key = owner.create_api_key("looking", ["read:orders"]).key
    with Client(address(http, key)) as client:
        assert client.get(own).json() == "x"
        assert [each.group for each in client.state(own)] == ["g"]
        with pytest.raises(TimedOut):
            client.result(own, timeout=0)
        for asked in (client.get, client.state, partial(client.result, timeout=0)):
            with pytest.raises(NotFound):
                asked(other)


def test_a_client_without_a_good_key_is_told_so(http: RunningGateway) -> None:
    with pytest.raises(Unauthenticated, match="wants to know who calls"), Client(http.url) as client:
        client.queues()
    wrong = "pstk_0123456789ab_" + "0" * 64
    with pytest.raises(Unauthenticated) as raised, Client(address(http, wrong)) as client:
        client.queues()
    assert wrong not in str(raised.value)


def test_a_stream_shows_what_the_caller_may_see_and_ends_with_its_key(
    http: RunningGateway, owner: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = owner.create_api_key("following", ["pop:tasks-*"])
    connection = HTTPConnection(urlsplit(http.url).netloc, timeout=60)
    connection.request("GET", "/api/v2/hints", headers={"Authorization": f"Bearer {made.key}"})
    answer = connection.getresponse()
    assert json.loads(answer.readline()) == []
    with Client(address(http, owner.create_api_key("pushing", ["push"]).key)) as pusher:
        pusher.push("orders", 1)
        pusher.push("tasks-2", 1)
        seen: set[str] = set()
        while not seen:
            seen |= set(json.loads(answer.readline()))
        assert seen == {"tasks-2"}
        owner.revoke_api_key("following")
        monkeypatch.setattr(keyring, "KEPT_FOR", 0.0)
        pusher.push("tasks-2", 2)
        assert "tasks-2" not in answer.read().decode()
    connection.close()


def test_a_long_poll_gives_nothing_to_a_key_that_was_revoked_meanwhile(
    http: RunningGateway, owner: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = owner.create_api_key("polling", ["pop:polled"])
    sent = {"Authorization": f"Bearer {made.key}"}
    assert http.ask("POST", "/queues/polled/groups/g/pop", headers=sent).status == 204
    answers: list[Answer] = []
    waiting = threading.Thread(
        target=lambda: answers.append(http.ask("POST", "/queues/polled/groups/g/pop?wait=50", headers=sent))
    )
    waiting.start()
    assert http.server.gateway is not None
    in_progress = http.server.gateway.instruments.in_progress
    eventually(lambda: in_progress._value.get() > 0)
    owner.revoke_api_key("polling")
    monkeypatch.setattr(keyring, "KEPT_FOR", 0.0)
    owner.push("polled", 1)
    waiting.join(60)

    assert [(answer.status, answer.json()["code"]) for answer in answers] == [(401, "unauthenticated")]
    # It was given back, and that counts as no attempt.
    batch = owner.pop("polled", "g", wait=20)
    assert batch is not None
    assert [claim.attempt for claim in batch.claims] == [1]


def test_one_key_holds_so_many_streams_and_others_still_listen(
    http: RunningGateway, owner: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert http.server.gateway is not None
    monkeypatch.setattr(http.server.gateway.feed.slots, "most_of_one", 2)
    greedy = {"Authorization": f"Bearer {owner.create_api_key('greedy', ['read']).key}"}
    modest = {"Authorization": f"Bearer {owner.create_api_key('modest', ['read']).key}"}
    with ExitStack() as stack:

        def listen(headers: dict[str, str]) -> int:
            connection = stack.enter_context(closing(HTTPConnection(urlsplit(http.url).netloc, timeout=60)))
            connection.request("GET", "/api/v2/events", headers=headers)
            answer = connection.getresponse()
            if answer.status == 200:
                answer.readline()
            return answer.status

        assert [listen(greedy) for _ in range(3)] == [200, 200, 503]
        assert listen(modest) == 200


async def test_a_flood_of_unknown_keys_leaves_the_known_ones_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyring, "_MOST_KEPT", 10)
    monkeypatch.setattr(keyring, "_LOOKUPS", Bucket(1e9, 1_000_000))
    asked: list[str] = []

    async def look_up(name: str) -> str | None:
        asked.append(name)
        return name if name.startswith("good") else None

    kept = keyring.Kept(look_up)
    good = [f"good{number}" for number in range(5)]
    for name in (*good, *(f"bad{number}" for number in range(1000))):
        await kept.get(name)
    asked.clear()
    assert [await kept.get(name) for name in good] == good
    assert asked == []
    # What is not there is remembered, too, and not for ever.
    assert await kept.get("bad999") is None
    assert asked == []
    assert len(kept._missing) <= 10
