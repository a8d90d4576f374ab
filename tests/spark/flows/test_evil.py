"""Flows: whatever a message holds, it is in the output or a dead letter, and the flow goes on."""

from pyspark.sql import DataFrame, functions

from evil.corpus import BYTES, JSON_TEXTS, MIB, TEXTS
from penstock import Message, PenstockError
from penstock.pipeline import Flow

from .conftest import Plant


def copying() -> Flow:
    flow = Flow("copying", source="in", schema="id long, text string")

    @flow.step
    def same(df: DataFrame) -> DataFrame:
        return df.withColumn("text", functions.concat(df.text, functions.lit("")))

    flow.to("out", partition="text")
    return flow


def test_every_message_is_in_the_output_or_a_dead_letter(plant: Plant) -> None:
    values = [value for value in {**BYTES, **JSON_TEXTS}.values() if len(value) < MIB]
    plant.client.push("in", values, partition="bytes")
    kept = 0
    for text in TEXTS.values():
        # As a field that becomes a partition, as a key, and as a header, where the client takes it.
        for message in (
            Message({"id": 1, "text": text}, partition="texts"),
            Message({"id": 1, "text": "t"}, key=text, headers={"h": text}, partition="texts"),
        ):
            try:
                plant.client.push("in", message)
            except PenstockError:
                continue
            kept += 1
    assert plant.drain(copying()), plant.said
    published = [m for place in plant.client.partitions("out") for m in plant.client.scan("out", place.name)]
    letters = plant.client.dead_letters("in", limit=1000)
    assert len(published) + len(letters) == len(values) + kept
    assert plant.client.lag("in", "copying") == 0
    assert [check for check in plant.client.verify() if check.violations] == []
