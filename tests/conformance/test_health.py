"""Consumers, breakers, metrics, checks and rules for dead letters, through every client."""

from collections.abc import Callable
from typing import Any

import pytest

from databases import Connection
from penstock import AlreadyExists, InvalidInput, NotFound


@pytest.fixture
def briefly(open_api: Callable[..., Any]) -> Callable[..., None]:
    """Calls a method of a client that is closed then, and so says all that it counted."""

    def call(method: str, *arguments: Any, **options: Any) -> None:
        other = open_api()
        getattr(other, method)(*arguments, **options)
        other.close()

    return call


def consume(briefly: Callable[..., None], handler: Callable[[Any], object]) -> None:
    """Consume all there is."""
    briefly("process", "orders", handler, group="billing", idle_timeout=0, handle_signals=False)


def fail(message: Any) -> None:
    raise OSError(f"no disk for {message.value!r}")


def test_a_consumer_is_known_with_what_it_handled(api: Any, briefly: Callable[..., None]) -> None:
    api.create_group("orders", "billing", max_attempts=1)
    api.push("orders", [b"1", b"2", b"3"], partition="p")
    consume(briefly, lambda message: fail(message) if message.value == b"2" else None)
    [consumer] = api.consumers()
    assert (consumer.status, consumer.success_count, consumer.error_count) == ("gone", 2, 1)
    assert consumer.last_error == "OSError: no disk for b'2'"
    assert api.reset_consumer(consumer.consumer_id) is True
    assert api.consumers() == []
    with pytest.raises(NotFound, match="no consumer"):
        api.reset_consumer(consumer.consumer_id)


def test_batches_that_no_loop_takes_count_too(api: Any, open_api: Callable[..., Any]) -> None:
    api.create_group("orders", "billing", max_attempts=2, backoff_initial=60)
    api.push("orders", [b"%d" % number for number in range(10)], partition="p")
    other = open_api()
    other.pop("orders", "billing", max_messages=2).ack()
    batch = other.pop("orders", "billing", max_messages=4)
    batch.ack(up_to=4)
    batch.ack()
    other.pop("orders", "billing", max_messages=1, auto_ack=True)
    other.pop("orders", "billing", max_messages=3).nack(8, error="no disk")
    # What is given back was not handled, and did not fail.
    api.push("orders", b"more", partition="other")
    other.pop("orders", "billing").release()
    other.close()
    [consumer] = api.consumers()
    assert (consumer.status, consumer.success_count, consumer.error_count) == ("gone", 8, 1)
    assert consumer.last_error == "no disk"
    assert consumer.metadata["groups"] == ["orders/billing"]
    values = {metric.metric_name: metric.metric_value for metric in api.metrics("orders")}
    assert (values["delivered"], values["batches"], values["acked"], values["failed"]) == (11, 5, 8, 1)


def test_a_group_that_fails_is_held_shown_and_let_go(api: Any, briefly: Callable[..., None]) -> None:
    api.create_group("orders", "billing", max_attempts=1, breaker_errors=3)
    api.push("orders", [b"%d" % number for number in range(5)], partition="p")
    # The default settings hold in a process until its first report has an answer.
    consume(briefly, fail)
    [breaker] = api.breakers()
    assert (breaker.queue, breaker.group, breaker.state, breaker.opened) == ("orders", "billing", "open", 1)
    api.push("orders", b"more", partition="p")
    assert api.pop("orders", "billing") is None
    assert api.reset_breaker("orders", "billing") is True
    assert api.reset_breaker("orders", "billing") is False
    assert api.pop("orders", "billing") is not None
    with pytest.raises(NotFound):
        api.reset_breaker("orders", "no such group")


def test_settings_of_a_breaker_out_of_bounds_are_refused(api: Any) -> None:
    for settings in ({"breaker_errors": -1}, {"breaker_rate": 1.5}, {"breaker_pause": 0}, {"breaker_window": "long"}):
        with pytest.raises(InvalidInput, match=next(iter(settings))):
            api.configure_group("orders", "billing", **settings)


def test_metrics_are_recorded_by_clients_and_by_samples(api: Any, briefly: Callable[..., None]) -> None:
    briefly("push", "orders", [b"1", b"2"])
    consume(briefly, lambda message: None)
    api.push("orders", b"3")
    assert api.sample() is True
    values = {metric.metric_name: metric.metric_value for metric in api.metrics("orders")}
    assert {name: values[name] for name in ("pushed", "delivered", "acked", "lag", "depth")} == {
        "pushed": 2,
        "delivered": 2,
        "acked": 2,
        "lag": 1,
        "depth": 1,
    }
    assert [metric.labels for metric in api.metrics("orders", "acked", limit=1)] == [{"group": "billing"}]
    [work] = api.work("orders")
    assert (work.group, work.lag, work.cold, work.flow_type) == ("billing", 1, 1, "UNKNOWN")
    with pytest.raises(NotFound):
        api.work("no such queue")


def test_rollups_are_listed_as_they_were_stored(api: Any, sql: Connection) -> None:
    api.create("orders")
    sql.execute(
        "SELECT penstock.store_rollups('{orders}', '{hour}', '{2026-01-01 10:00+00}', '{lag}',"
        " ARRAY['{\"group\": \"g\"}']::jsonb[], '{3}', '{60}', '{10}', '{30}', '{20}')"
    )
    [rollup] = api.rollups("orders", "lag", resolution="hour")
    assert (rollup.samples, rollup.total, rollup.smallest, rollup.largest, rollup.newest) == (3, 60, 10, 30, 20)
    assert (rollup.labels, api.rollups("orders")) == ({"group": "g"}, [])


def test_checks_are_listed_configured_and_reset(api: Any) -> None:
    before = {check.name: check for check in api.checks()}
    assert (before["cold_high"].threshold, before["cold_growing"].duration) == (75_000, 720)
    api.configure_check("cold_high", threshold=5, enabled=False, advice="call me")
    changed = {check.name: check for check in api.checks()}["cold_high"]
    assert (changed.threshold, changed.enabled, changed.advice, changed.configured) == (5, False, "call me", True)
    api.configure_check("cold_high", threshold=None, enabled=None, advice=None)
    assert {check.name: check for check in api.checks()} == before
    with pytest.raises(NotFound, match='no check "cold"'):
        api.configure_check("cold", threshold=1)
    for wrong in ({"threshold": -1}, {"threshold": "much"}, {"enabled": 1}, {"limit": 1}, {"advice": 5}):
        with pytest.raises(InvalidInput, match="of a check"):
            api.configure_check("cold_high", **wrong)


def test_facts_have_all_that_checks_judge(api: Any, briefly: Callable[..., None]) -> None:
    api.create_group("orders", "billing", max_attempts=1, breaker_errors=1)
    api.push("orders", b"1", partition="p")
    api.push("nobody", b"1")
    consume(briefly, fail)
    api.push("orders", b"3", partition="q")
    api.sample()
    facts = api.facts()
    assert [(work.queue, work.lag) for work in facts.work] == [("orders", 1)]
    assert [breaker.state for breaker in facts.breakers] == ["open"]
    assert [(queue, group) for queue, group, _ in facts.consuming] == [("orders", "billing")]
    assert [queue for queue, _ in facts.orphans] == ["nobody"]
    assert len(facts.checks) == len(api.checks())
    assert facts.paused == []
    api.pause_group("orders", "billing")
    assert api.facts().paused == [("orders", "billing")]


def test_rules_redrive_what_matches(api: Any, briefly: Callable[..., None]) -> None:
    api.create_group("orders", "billing", max_attempts=1)
    api.push("orders", [b"1", b"2"], partition="p")
    consume(briefly, fail)
    assert [match.verdict for match in api.match_dead_letters(queue="orders", backoff=3600)] == ["wait", "wait"]
    api.add_rule("again", queue="orders", reason="OSError", error="b'1'", backoff=0, max_redrives=1)
    with pytest.raises(AlreadyExists):
        api.add_rule("again")
    [match] = api.test_rule("again")
    assert (match.verdict, match.redrives) == ("redrive", 0)
    assert api.run_rules() == 1
    consume(briefly, fail)
    assert api.run_rules() == 0
    assert [match.verdict for match in api.test_rule("again")] == ["exhausted"]
    [rule] = api.rules()
    assert (rule.name, rule.redriven, rule.max_redrives) == ("again", 1, 1)
    api.delete_rule("again")
    assert api.rules() == []
    with pytest.raises(NotFound):
        api.delete_rule("again")
