"""Queues, partitions, groups, schedules and health as resources: created, changed, replaced, listed, deleted."""

import pytest

from gateways import RunningGateway, gateway
from penstock import Client, SetupError
from penstock.gateway.serving import Serving, bind


def test_put_replaces_patch_merges_and_null_means_the_default(http: RunningGateway) -> None:
    made = http.ask("PUT", "/queues/q", {"settings": {"max_attempts": 7, "lease_time": 90}, "description": "orders"})
    merged = http.ask("PATCH", "/queues/q", {"settings": {"lease_time": None, "spread": 3}}).json()
    replaced = http.ask("PUT", "/queues/q", {"settings": {"spread": 2}})

    assert (made.status, made.json()["config"]) == (201, {"max_attempts": 7, "lease_time": 90})
    assert merged["config"] == {"max_attempts": 7, "spread": 3}
    assert (replaced.status, replaced.json()["config"]) == (200, {"spread": 2})
    assert http.ask("PATCH", "/queues/other", {"settings": {}}).status == 404
    assert http.ask("PATCH", "/queues/q", {"settings": {"nonsense": 1}}).json()["code"] == "invalid_input"


@pytest.mark.parametrize("path", ["/queues/q", "/queues/q/partitions/p", "/queues/q/groups/g"])
def test_a_put_that_shall_only_create_leaves_alone_what_is_there(http: RunningGateway, path: str) -> None:
    settings = {"priority": 3} if "partitions" in path else {"settings": {"max_attempts": 7}}
    made = http.ask("PUT", path, settings, {"If-None-Match": "*"})
    again = http.ask("PUT", path, {}, {"If-None-Match": "*"})

    assert (made.status, again.status, again.json()["code"]) == (201, 409, "already_exists")
    assert http.get(path) == made.json()


@pytest.mark.parametrize("evil", [b"\xff", b"\xed\xa0\x80"], ids=["no UTF-8", "half a surrogate pair"])
@pytest.mark.parametrize(
    ("method", "path", "body", "media"),
    [
        ("POST", "/queues/q/messages", b'{"messages": [{"value": "%s"}]}', "application/json"),
        ("POST", "/queues/q/messages", b'{"value": "%s"}', "application/x-ndjson"),
        ("PUT", "/schedules/s", b'{"queue": "q", "every": "1h", "message": {"value": "%s"}}', "application/json"),
        ("POST", "/transactions", b'{"pushes": [{"queue": "q", "value": "%s"}]}', "application/json"),
    ],
)
def test_json_that_is_no_text_is_refused_everywhere(
    http: RunningGateway, method: str, path: str, body: bytes, media: str, evil: bytes
) -> None:
    answer = http.ask(method, path, body % evil, {"Content-Type": media})

    assert (answer.status, answer.json()["code"]) == (400, "invalid_input")
    assert "UTF-8" in answer.json()["detail"]
    assert http.get("/queues")["items"] == []


def test_a_patch_keeps_a_description_that_it_does_not_name_and_null_removes_it(http: RunningGateway) -> None:
    http.ask("PUT", "/queues/q", {"description": "orders"})

    kept = http.ask("PATCH", "/queues/q", {"settings": {"spread": 3}}).json()
    removed = http.ask("PATCH", "/queues/q", {"description": None}).json()

    assert (kept["description"], removed["description"] or None, removed["config"]) == ("orders", None, {"spread": 3})


def test_groups_are_resources_too(http: RunningGateway) -> None:
    http.post("/queues/q/messages", {"messages": [{"value": n, "partition": "p"} for n in range(5)]})
    made = http.ask("PUT", "/queues/q/groups/g", {"settings": {"max_attempts": 2}, "mode": "shared"})
    merged = http.ask("PATCH", "/queues/q/groups/g", {"settings": {"lease_time": 5}}).json()
    replaced = http.ask("PUT", "/queues/q/groups/g", {"settings": {}, "mode": "shared"}).json()

    assert (made.status, made.json()["mode"]) == (201, "shared")
    assert merged["config"] == {"max_attempts": 2, "lease_time": 5}
    assert replaced["config"] == {}
    assert http.ask("PUT", "/queues/q/groups/g", {"mode": "ordered"}).status == 400
    assert http.get("/queues/q/groups/g/lag") == {"lag": 5}
    assert http.post("/queues/q/groups/g/pause") == {"changed": True}
    assert http.ask("POST", "/queues/q/groups/g/pop").status == 204
    assert http.post("/queues/q/groups/g/resume") == {"changed": True}
    assert http.ask("DELETE", "/queues/q/groups/g").status == 204
    assert http.ask("GET", "/queues/q/groups/g").status == 404


def test_seek_says_first_what_it_would_do(http: RunningGateway) -> None:
    http.post("/queues/q/messages", {"messages": [{"value": n, "partition": "p"} for n in range(5)]})
    http.post("/queues/q/groups/g/pop?auto_ack=true")

    would = http.post("/queues/q/groups/g/seek", {"to": "earliest", "preview": True})
    unmoved = http.get("/queues/q/groups/g/lag")
    did = http.post("/queues/q/groups/g/seek", {"to": 3, "partition": "p"})

    assert (would["preview"], would["redelivered"], unmoved) == (True, 5, {"lag": 0})
    assert (did["preview"], did["redelivered"]) == (False, 2)
    assert http.get("/queues/q/groups/g/lag") == {"lag": 2}


def test_a_claim_is_failed_snoozed_renewed_released_and_taken_away(http: RunningGateway) -> None:
    http.ask("PUT", "/queues/q", {"settings": {"backoff": 0}})
    http.post("/queues/q/messages", {"messages": [{"value": n, "partition": str(n)} for n in range(3)]})

    def pop() -> str:
        lease: str = http.post("/queues/q/groups/g/pop?wait=20")["claims"][0]["lease"]
        return lease

    assert http.post("/nacks", {"lease": pop(), "error": "no"}) == {"result": "retry"}
    assert http.post("/snoozes", {"lease": pop(), "seconds": 3600}) == {"results": ["done"]}
    lease = pop()
    [until] = http.post("/renewals", {"leases": [lease], "seconds": 60})["lease_until"]
    assert until is not None
    [claim] = http.get("/claims")
    assert (claim["lease"], claim["queue"]) == (lease, "q")
    assert http.post("/releases", {"leases": [lease]}) == {"results": ["done"]}
    assert http.post("/releases", {"leases": [lease]}) == {"results": ["lost"]}
    again = pop()
    assert http.ask("DELETE", f"/claims/{again}").json() == {"changed": True}
    assert http.post("/acks", {"acks": [{"lease": again}]}) == {"results": ["lost"]}
    assert http.post("/nacks", {"lease": again}) == {"result": "lost"}


def test_acks_and_pushes_take_effect_together_or_not_at_all(http: RunningGateway, dsn: str) -> None:
    http.post("/queues/q/messages", {"messages": [{"value": 1}]})
    lease = http.post("/queues/q/groups/g/pop")["claims"][0]["lease"]
    both = {"acks": [{"lease": lease}], "pushes": [{"queue": "out", "messages": [{"value": 2, "partition": "p"}]}]}

    done = http.post("/transactions", both)
    again = http.ask("POST", "/transactions", both)

    assert done["results"][0][0]["first_offset"] == 0
    assert (again.status, again.json()["code"]) == (409, "lease_lost")
    with Client(dsn) as client:
        assert [message.json() for message in client.read("out", "p")] == [2]


def test_several_groups_are_popped_at_once(http: RunningGateway) -> None:
    http.post("/queues/a/messages", {"messages": [{"value": 1}]})
    pops = [{"queue": "a", "group": "g"}, {"queue": "b", "group": "g"}]

    found = http.post("/pops", {"pops": pops})
    nothing = http.ask("POST", "/pops", {"pops": pops, "wait": 0.2})

    assert [None if each is None else each["claims"][0]["messages"][0]["value"] for each in found["results"]] == [
        1,
        None,
    ]
    assert nothing.status == 204


def test_lists_come_in_pages(http: RunningGateway) -> None:
    for name in "abc":
        http.ask("PUT", f"/queues/{name}", {})
    http.post("/queues/a/messages", {"messages": [{"value": n, "partition": str(n % 3)} for n in range(9)]})

    def all_of(path: str, parameter: str = "after") -> list[list[object]]:
        pages, after = [], ""
        while True:
            page = http.get(f"{path}?limit=2{after}")
            pages.append([each.get("name", each.get("value")) for each in page["items"]])
            if page["next"] is None:
                return pages
            after = f"&{parameter}={page['next']}"

    assert all_of("/queues") == [["a", "b"], ["c"]]
    assert all_of("/queues/a/partitions") == [["0", "1"], ["2"]]
    assert all_of("/queues/a/partitions/0/messages", "start") == [[0, 3], [6]]


def test_a_schedule_is_defined_paused_run_and_deleted(http: RunningGateway) -> None:
    defined = http.ask("PUT", "/schedules/tidy", {"queue": "chores", "message": {"value": {"a": 1}}, "every": "1 hour"})
    paused = http.post("/schedules/tidy/pause")
    resumed = http.post("/schedules/tidy/resume")
    pushed = http.post("/schedules/tidy/run")

    assert (defined.status, defined.json()["words"], defined.json()["value"]) == (200, "every 1 hour", {"a": 1})
    assert (paused["paused"], resumed["paused"]) == (True, False)
    assert (pushed["queue"], pushed["count"]) == ("chores", 1)
    assert http.ask("DELETE", "/schedules/tidy").status == 204
    assert http.ask("GET", "/schedules/tidy").status == 404


def test_scheduled_pushes_are_listed_and_cancelled(http: RunningGateway) -> None:
    pushed = http.post("/queues/q/messages?delay=3600", {"messages": [{"value": 1}]})
    [number] = pushed["results"][0]["scheduled_ids"]

    assert [each["scheduled_id"] for each in http.get("/scheduled?queue=q")["items"]] == [number]
    assert http.ask("DELETE", f"/scheduled/{number}").json() == {"cancelled": True}
    assert http.ask("DELETE", f"/scheduled/{number}").json() == {"cancelled": False}


def test_health_is_there_for_monitors(http: RunningGateway) -> None:
    assert http.get("/status")["healthy"] is True
    assert http.get("/verify")["sound"] is True
    assert len(http.get("/checks")) > 3
    assert http.get("/consumers") == http.get("/breakers") == http.get("/flows") == http.get("/tasks") == []


def test_a_message_is_found_by_its_id_with_its_state_and_its_bytes(http: RunningGateway) -> None:
    http.ask("PUT", "/queues/q/groups/g", {})
    [message_id] = http.post("/queues/q/messages", {"messages": [{"value_base64": "AP8="}]})["results"][0]["ids"]

    assert http.get(f"/messages/{message_id}")["value_base64"] == "AP8="
    assert http.ask("GET", f"/messages/{message_id}", headers={"Accept": "application/octet-stream"}).body == b"\0\xff"
    assert [(each["group"], each["state"]) for each in http.get(f"/messages/{message_id}/state")] == [("g", "waiting")]
    assert http.post("/messages/cancel", {"ids": [message_id]}) == {"cancelled": [message_id]}


def test_a_gateway_without_authentication_is_not_open_to_the_world(dsn: str) -> None:
    for host in ("0.0.0.0", "::", "192.0.2.1"):
        with pytest.raises(SetupError, match="authentication"):
            bind(Serving(dsn, host=host, port=0))
    with gateway(dsn, host="localhost") as http:
        assert http.get("//readyz")["status"] == "ready"
