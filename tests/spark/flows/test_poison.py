"""The search for messages at which a step fails: it finds all of them in few batches, and blames no other."""

import math
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, functions
from pyspark.sql.types import LongType

from penstock.broker.flows import EpochRange
from penstock.pipeline import Flow
from penstock.pipeline.frames import Connection
from penstock.pipeline.poison import MOST, Found, Interrupted, Probe, search

from .conftest import Plant


def searched(plant: Plant, flow: Flow, count: int, *, again: bool = True) -> tuple[list[Found], int]:
    """Push so many messages, and search them; return what was found, and how many batches that took."""
    plant.client.push("in", [{"id": n} for n in range(count)], partition="p")
    probe = Probe(plant.spark, flow, Connection(plant.dsn))
    found: list[Found] = []
    try:
        with suppress(Interrupted):
            spans = probe.keep([EpochRange(plant.number("in", "p"), "in", "p", 0, count)])
            search(probe, spans, MOST, found, again=again)
    finally:
        probe.close()
    return found, probe.runs


def flow_with(handle: Callable[[int], int], *, shuffled: bool = False) -> Flow:
    """Return a flow with a step that calls a Python function for each message."""
    flow = Flow("fragile", source="in", schema="id long")
    handled = functions.udf(handle, LongType())

    @flow.step
    def first(df: DataFrame) -> DataFrame:
        return df.repartition(7, "id") if shuffled else df

    @flow.step
    def second(df: DataFrame) -> DataFrame:
        return df.withColumn("id", handled("id"))

    return flow.to("out")


@pytest.mark.parametrize("shuffled", [False, True])
def test_several_messages_that_fail_are_all_found_wherever_a_step_moves_them(plant: Plant, shuffled: bool) -> None:
    bad = {0, 41, 149} if not shuffled else {41}

    def handle(number):  # type: ignore[no-untyped-def]
        if number in bad:
            raise ValueError(f"no {number}")
        return number

    found, runs = searched(plant, flow_with(handle, shuffled=shuffled), 150)
    assert {(one.offset, one.part, one.error) for one in found} == {(n, "second", f"ValueError: no {n}") for n in bad}
    if not shuffled:
        # All, some that are well (two tries); for each three of a tenth, two for the step, the rest, and those that are
        # well again.
        assert runs <= 1 + 2 + len(bad) * (4 + 2 + 1 + 1)


def test_a_service_that_goes_away_during_a_search_makes_no_poison(plant: Plant) -> None:
    called, away = plant.folder / "called", plant.folder / "away"

    def handle(number, called=str(called), away=str(away)):  # type: ignore[no-untyped-def]
        if Path(away).exists():
            raise ConnectionError("the service is away")
        if number == 77:
            raise ValueError("no")
        if number == 0 and Path(called).exists():
            # By the time that it is run by itself, as one that is well.
            Path(away).touch()
        if number == 0:
            Path(called).touch()
        return number

    found, runs = searched(plant, flow_with(handle), 100)
    assert away.exists()
    assert runs > 2
    assert found == []


def test_where_no_message_is_well_none_is_blamed_unless_they_are_few_and_have_failed_before(plant: Plant) -> None:
    def handle(number):  # type: ignore[no-untyped-def]
        raise ValueError("no")

    assert searched(plant, flow_with(handle), 3, again=False)[0] == []
    assert sorted(one.offset for one in searched(plant, flow_with(handle), 2)[0]) == [0, 1]
    assert searched(plant, flow_with(handle), 10)[0] == []


def test_what_fails_in_java_is_found_by_halving_and_nobody_else_is_blamed(plant: Plant) -> None:
    checked = "CASE WHEN x = 0 THEN double(raise_error('poison')) ELSE x END"
    count = 64
    # Spark computes x of the first source after the join: there a message fails only beside its partner.
    for poison in ({"a": set(), "b": {50}}, {"a": {20}, "b": set()}):
        queues = {alias: f"{alias}{len(bad)}" for alias, bad in poison.items()}
        flow = Flow("pairs", sources=queues, schema=dict.fromkeys(queues, "id long, x double"))

        @flow.step
        def joined(a: DataFrame, b: DataFrame) -> DataFrame:
            a, b = (side.withColumn("x", functions.expr(checked)) for side in (a, b))
            return a.join(b.selectExpr("id AS other", "x AS y", "_message_b"), functions.expr("id = other"))

        flow.to("out")
        ranges = {}
        for alias, queue in queues.items():
            values = [{"id": n, "x": float(n not in poison[alias])} for n in range(count)]
            plant.client.push(queue, values, partition="p")
            ranges[alias] = EpochRange(plant.number(queue, "p"), queue, "p", 0, count)
        probe = Probe(plant.spark, flow, Connection(plant.dsn))
        found: list[Found] = []
        try:
            search(probe, probe.keep(list(ranges.values())), MOST, found)
        finally:
            probe.close()
        assert [(one.partition_id, one.offset, one.part) for one in found] == [
            (ranges[alias].partition_id, offset, "joined") for alias in queues for offset in sorted(poison[alias])
        ]
        assert all("poison" in one.error for one in found)
        # All together, some that are well, each side; then for each message its halves, twice, the step, and the rest.
        assert probe.runs <= 1 + 10 + 2 + len(found) * (math.ceil(math.log2(count)) + 4)
