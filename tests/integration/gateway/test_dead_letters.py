"""Dead letters over HTTP: by ids with a verdict for each, and by filter as a job."""

import time
from typing import Any

import pytest

from gateways import RunningGateway, gateway
from penstock import Client


def make_letters(dsn: str, count: int, queue: str = "q") -> None:
    with Client(dsn) as client:
        client.create(queue, max_attempts=1)
        client.push(queue, list(range(count)), partition="p")
        while (batch := client.pop(queue, "g", max_messages=1)) is not None:
            batch.nack(error="no", reason="broken" if next(iter(batch)).offset % 2 else "odd")


def ended(http: RunningGateway, job: str) -> Any:
    deadline = time.monotonic() + 60
    while (found := http.get(f"/jobs/{job}"))["state"] in ("running", "stopping"):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def test_letters_are_redriven_by_their_ids_with_a_verdict_for_each(http: RunningGateway, dsn: str) -> None:
    make_letters(dsn, 3)
    page = http.get("/queues/q/dead-letters?limit=2")
    rest = http.get(f"/queues/q/dead-letters?limit=2&after={page['next']}")
    ids = [letter["id"] for letter in [*page["items"], *rest["items"]]]

    verdicts = http.post("/queues/q/dead-letters/redrive", {"ids": [ids[0], ids[0], 999_999]})
    thrown = http.post("/queues/q/dead-letters/discard", {"ids": [ids[1]]})

    assert (len(ids), rest["next"]) == (3, None)
    assert verdicts == {"results": ["moved", "duplicate", "gone"], "moved": 1}
    assert thrown == {"results": ["moved"], "moved": 1}
    assert [letter["value"] for letter in http.get("/queues/q/dead-letters")["items"]] == [2]


def test_letters_are_redriven_by_a_filter_and_any_gateway_shows_how_far_that_is(http: RunningGateway, dsn: str) -> None:
    make_letters(dsn, 10)
    with gateway(dsn) as other:
        begun = http.ask("POST", "/jobs", {"kind": "redrive", "queue": "q", "group": "g", "reason": "broken"})
        job = begun.json()
        over = ended(other, job["job_id"])

    assert (begun.status, begun.headers["location"]) == (202, f"/api/v2/jobs/{job['job_id']}")
    assert (over["state"], over["done"], over["total"]) == ("done", 5, 5)
    assert [each["reason"] for each in http.get("/queues/q/dead-letters/reasons")] == ["odd"]
    assert http.ask("GET", "/jobs/00000000-0000-0000-0000-000000000000").status == 404


def test_a_job_stops_when_somebody_says_so(http: RunningGateway, dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make_letters(dsn, 40)
    monkeypatch.setattr("penstock.gateway.routes.jobs._CHUNK", 1)

    job = http.post("/jobs", {"kind": "discard", "queue": "q"})["job_id"]
    stopped = http.ask("DELETE", f"/jobs/{job}")
    over = ended(http, job)

    assert stopped.json() == {"changed": True}
    assert (over["state"], over["total"]) == ("stopped", 40)
    left = sum(each["letters"] for each in http.get("/queues/q/dead-letters/reasons"))
    assert over["done"] + left == 40
    assert left > 0
