"""What flows promise, end to end: outputs, dead letters and progress are one, and every row is somewhere once."""

import json
import os
import re
import shutil
import sqlite3
import time
from collections import Counter
from functools import reduce
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import DataFrame, functions
from pyspark.sql.types import DoubleType, LongType, StringType

import penstock.spark
from penstock import Message
from penstock.errors import InvalidInput, Retryable
from penstock.pipeline import Flow, archive, checking, frames
from penstock.pipeline.frames import Connection
from penstock.pipeline.testing import Dead, run_flow, run_steps
from spark.faults import STEPS, epoch_faults
from spark.test_streaming import until

from .conftest import ORDERS, Plant, orders


def clean(name: str = "clean") -> Flow:
    flow = Flow(name, source="in", schema=ORDERS, max_messages=60)

    @flow.step
    def euros(df: DataFrame) -> DataFrame:
        return df.withColumn("amount", df.amount * 2)

    flow.expect("amount is positive", "amount > 0")
    flow.route("large", when="amount > 100", partition="customer")
    flow.to("out", partition="customer")
    return flow


def test_dead_letters_of_archived_messages_have_their_copies(plant: Plant) -> None:
    plant.client.push(
        "in", [Message(b"{", key="k", headers={"h": "1"}), {"id": 1, "customer": "c", "amount": -1.0}], partition="p"
    )
    plant.client.push("in", None, partition="p", key="gone")
    sent = list(plant.client.scan("in", "p"))
    archive("in", str(plant.folder / "archive"), drop=True, url=plant.dsn, spark=plant.spark)
    plant.client.push("in", [b"["], partition="p")
    assert plant.client.partitions("in")[0].floor == 3
    assert plant.drain(clean()), plant.said
    assert plant.letters() == {"clean: amount is positive": 2, "clean: malformed": 2}
    letters = sorted(plant.client.dead_letters("in"), key=lambda letter: letter.offset)
    assert [(one.offset, one.value, one.key, one.headers) for one in letters] == [
        (0, b"{", "k", {"h": "1"}),
        (1, sent[1].value, None, None),
        (2, None, "gone", None),
        (3, b"[", None, None),
    ]
    assert [one.timestamp for one in letters[:3]] == [message.timestamp for message in sent]


def test_routes_dead_letters_and_progress_of_an_epoch_are_one_transaction(plant: Plant) -> None:
    plant.client.push("in", orders(0, 150), partition="p")
    plant.client.push("in", [b"{", {"id": "x"}, {"id": 1000, "customer": "c"}], partition="q")
    assert plant.drain(clean()), plant.said
    good = [order for order in orders(0, 150) if order["amount"] > 0]
    assert plant.ids("out") == sorted(order["id"] for order in good)
    assert plant.ids("large") == sorted(order["id"] for order in good if order["amount"] * 2 > 100)
    assert plant.letters() == {"clean: amount is positive": 16, "clean: malformed": 2}
    letters = plant.client.dead_letters("in", reason="clean: malformed")
    assert [(letter.partition, letter.offset, letter.value) for letter in letters] == [
        ("q", 0, b"{"),
        ("q", 1, b'{"id":"x"}'),
    ]
    assert letters[1].last_error == "Expected `int | null`, got `str` - at `$.id`"
    with psycopg.connect(plant.dsn) as connection:
        ledger = connection.execute(
            "SELECT count(DISTINCT c.xmin::text), count(DISTINCT j.xmin::text) FILTER (WHERE j.xmin = c.xmin)"
            " FROM penstock.sink_commits c LEFT JOIN penstock.dead_letters j ON j.xmin = c.xmin"
        ).fetchone()
        assert connection.execute("SELECT count(*) FROM penstock.stages").fetchone() == (0,)
        assert connection.execute("SELECT count(*) FROM penstock.staged_dead_letters").fetchone() == (0,)
    # Every epoch that has dead letters has them from the very transaction that published it.
    assert ledger == (3, 3)
    assert plant.client.lag("in", "clean") == 0
    assert all(check.violations == 0 for check in plant.client.verify())


def test_an_epoch_that_fails_at_any_step_publishes_all_its_parts_once(plant: Plant) -> None:
    # Epochs 0 to 3 fail, each at another step and once; 4 is well.
    faults = plant.folder / "faults"
    faults.mkdir()
    plant.client.push("in", orders(0, 250), partition="p")
    plant.client.push("in", [b"{"] * 5, partition="q")
    plant.spark.dataSource.register(epoch_faults(faults))
    try:
        assert plant.drain(clean()), plant.said
    finally:
        penstock.spark.register(plant.spark)
    assert {path.name for path in faults.iterdir()} == set(STEPS)
    assert [f"clean: backing off: RuntimeError: failed {step}" in plant.said for step in STEPS] == [True] * 4
    good = [order for order in orders(0, 250) if order["amount"] > 0]
    assert plant.ids("out") == [order["id"] for order in good]
    assert plant.ids("large") == [order["id"] for order in good if order["amount"] * 2 > 100]
    assert plant.letters() == {"clean: amount is positive": 25, "clean: malformed": 5}
    assert plant.client.lag("in", "clean") == 0
    assert all(check.violations == 0 for check in plant.client.verify())


def test_the_source_is_read_once_whatever_the_number_of_routes(plant: Plant) -> None:
    plant.client.push("in", orders(0, 5), partition="p")
    flow = clean().route("odd", when="id % 2 = 1").route("even", when="id % 2 = 0")
    sources = frames.streams(plant.spark, flow, Connection(plant.dsn))
    rows = frames.sink_rows(flow, frames.transform(flow, sources), {})
    query = rows.writeStream.format("noop").option("checkpointLocation", str(plant.folder / "c"))
    running = query.trigger(availableNow=True).start()
    assert running.awaitTermination(60)
    plan = running._jsq.explainInternal(False)
    assert plan.count("MicroBatchScan") == 1, plan


def test_redriven_dead_letters_go_through_the_same_flow_once_and_to_their_own_partition(plant: Plant) -> None:
    plant.client.push("in", [{"id": 1, "customer": "a", "amount": -1.0}, {"id": 2, "customer": "a"}], partition="p")
    assert plant.drain(clean()), plant.said
    assert plant.values("out") == []
    mended = Flow("clean", source="in", schema=ORDERS, max_messages=60)
    mended.expect("amount is there", "amount is not null").to("out", partition="_message.partition")
    assert plant.client.redrive("in", "clean") == 2
    assert plant.client.lag("in", "clean") == 2
    assert plant.drain(mended), plant.said
    # The lane is the group's own; what comes from it goes where the first message would have gone.
    assert [partition.name for partition in plant.client.partitions("out")] == ["p"]
    assert plant.ids("out") == [1]
    # What fails again is dead again, and does not come back by itself.
    assert plant.drain(mended), plant.said
    (letter,) = plant.client.dead_letters("in")
    assert (letter.reason, json.loads(letter.value or b"")["id"]) == ("clean: amount is there", 2)
    assert plant.client.lag("in", "clean") == 0


def test_windows_over_a_skewed_backlog_get_every_row_and_late_ones_are_counted(plant: Plant) -> None:
    def rows(count: int) -> list[dict[str, Any]]:
        seconds = [3600 * number // count for number in range(count)]
        return [{"at": f"2026-01-01T12:{second // 60:02}:{second % 60:02}Z"} for second in seconds]

    def counted(name: str, source: str) -> Flow:
        flow = Flow(name, source=source, schema="at timestamp", max_messages=1000)

        @flow.step
        def per_minute(df: DataFrame) -> DataFrame:
            by_minute = df.withWatermark("at", "1 minute").groupBy(functions.window("at", "1 minute").alias("w"))
            return by_minute.count().select("w.start", "count")

        return flow.to(f"{name}.out", partition="'all'")

    # Loaded one after the other, and as they would have come.
    for queue in ("loaded", "live"):
        plant.client.push(queue, rows(3000), partition="big")
        plant.client.push(queue, rows(60), partition="small")
        plant.client.push(queue, {"at": "2026-01-01T14:00:00Z"}, partition="big")
        plant.client.push(queue, {"at": "2026-01-01T14:00:00Z"}, partition="small")
    with psycopg.connect(plant.dsn) as connection:
        connection.execute(
            "UPDATE penstock.segments s SET created_at = r.times[1], run_counts = r.counts, run_times = r.times"
            " FROM (SELECT s.partition_id, array_fill(1, ARRAY[s.count]) AS counts,"
            "   array_agg(now() - interval '3 hours' + interval '1 hour' * i / s.count ORDER BY i) AS times"
            "   FROM penstock.segments s"
            "   JOIN penstock.partitions USING (partition_id) JOIN penstock.queues q USING (queue_id)"
            "   CROSS JOIN generate_series(0, s.count - 1) i WHERE q.name = 'live' AND s.count > 1"
            "   GROUP BY s.partition_id, s.count) r"
            " WHERE s.partition_id = r.partition_id AND s.count > 1"
        )
    assert plant.drain(counted("l", "loaded"), counted("m", "live")), plant.said
    for name in ("l", "m"):
        assert [value["count"] for value in plant.values(f"{name}.out")] == [51] * 60
    assert [info.late_rows for info in plant.client.flows()] == [0, 0]
    # What does come too late is counted.
    plant.client.push("loaded", rows(1), partition="small")
    assert plant.drain(counted("l", "loaded")), plant.said
    assert [info.late_rows for info in plant.client.flows()] == [1, 0]


@pytest.mark.parametrize("as_it_came", [False, True], ids=["loaded at once", "as it came"])
def test_windows_over_two_sources_get_every_row_though_one_has_far_more_to_read(plant: Plant, as_it_came: bool) -> None:
    flow = Flow("u", sources={"a": "big", "b": "small"}, schema=dict.fromkeys("ab", "at timestamp"), max_messages=1000)

    @flow.step
    def per_minute(a: DataFrame, b: DataFrame) -> DataFrame:
        both = a.select("at").unionByName(b.select("at")).withWatermark("at", "1 minute")
        return both.groupBy(functions.window("at", "1 minute").alias("w")).count().select("w.start", "count")

    flow.to("out", partition="'all'")
    for queue, count in (("small", 60), ("big", 3000)):
        seconds = [3600 * number // count for number in range(count)]
        rows = [{"at": f"2026-01-01T12:{second // 60:02}:{second % 60:02}Z"} for second in seconds]
        plant.client.push(queue, rows, partition="p")
        plant.client.push(queue, {"at": "2026-01-01T14:00:00Z"}, partition="p")
    if as_it_came:
        with psycopg.connect(plant.dsn) as connection:
            connection.execute(
                "UPDATE penstock.segments s SET created_at = r.times[1], run_counts = r.counts, run_times = r.times"
                " FROM (SELECT s.partition_id, array_fill(1, ARRAY[s.count]) AS counts,"
                "   array_agg(now() - interval '3 hours' + interval '1 hour' * i / s.count ORDER BY i) AS times"
                "   FROM penstock.segments s CROSS JOIN generate_series(0, s.count - 1) i WHERE s.count > 1"
                "   GROUP BY s.partition_id, s.count) r"
                " WHERE s.partition_id = r.partition_id AND s.count > 1"
            )

    assert plant.drain(flow), plant.said

    assert [value["count"] for value in plant.values("out")] == [51] * 60
    assert [info.late_rows for info in plant.client.flows()] == [0]
    assert [plant.client.lag(queue, "u") for queue in ("big", "small")] == [0, 0]


def test_two_sources_make_a_join_and_a_pair_that_fails_is_dead_on_both_sides(plant: Plant) -> None:
    flow = Flow(
        "paid",
        sources={"o": "in", "p": "payments"},
        schema={"o": "id long, amount double", "p": "order long, paid double"},
    )

    @flow.step
    def joined(o: DataFrame, p: DataFrame) -> DataFrame:
        return o.join(p, o.id == p.order)

    flow.expect("paid in full", "paid >= amount").to("out")
    plant.client.push("in", [{"id": n, "amount": 10.0} for n in range(20)], partition="p")
    plant.client.push("payments", [{"order": n, "paid": 10.0 if n % 4 else 1.0} for n in range(20)], partition="p")
    plant.client.push("payments", b"{", partition="p")
    assert plant.drain(flow), plant.said
    assert plant.ids("out") == [n for n in range(20) if n % 4]
    assert plant.letters("in") == {"paid: paid in full": 5}
    assert plant.letters("payments") == {"paid: paid in full": 5, "paid: malformed": 1}
    assert [plant.client.lag(queue, "paid") for queue in ("in", "payments")] == [0, 0]


def test_a_pair_that_fails_loses_neither_message_and_comes_out_once_when_it_is_redriven(plant: Plant) -> None:
    def paid(condition: str) -> Flow:
        flow = Flow(
            "paid",
            sources={"o": "in", "p": "payments"},
            schema={"o": "id long, amount double", "p": "order long, paid double"},
        )
        flow.step(lambda o, p: o.join(p, o.id == p.order))
        return flow.expect("paid in full", condition).to("out")

    plant.client.push("in", [{"id": 1, "amount": 10.0}], partition="p", key="k", headers={"h": "1"})
    plant.client.push("payments", [{"order": 1, "paid": 20.0}], partition="p")
    assert plant.drain(paid("paid >= amount")), plant.said
    # The order waits in the state of the join, and is gone from the log when its second payment comes.
    plant.client.purge("in")
    assert plant.client.partitions("in")[0].floor == 1
    plant.client.push("payments", [{"order": 1, "paid": number} for number in (1.0, 2.0)], partition="p")
    assert plant.drain(paid("paid >= amount")), plant.said
    (letter,) = plant.client.dead_letters("in")
    assert (letter.offset, letter.value, letter.key, letter.headers) == (0, b'{"id":1,"amount":10.0}', "k", {"h": "1"})
    assert [letter.offset for letter in plant.client.dead_letters("payments")] == [1, 2]
    # Redriven, each failed pair comes once, and the one that was written does not come again. What fails again, too.
    for condition, written in (("paid <> 2", [20.0, 1.0]), ("paid > 0", [20.0, 1.0, 2.0])):
        assert plant.client.redrive("in", "paid") == 1
        plant.client.redrive("payments", "paid")
        assert plant.drain(paid(condition)), plant.said
        assert sorted(value["paid"] for value in plant.values("out")) == sorted(written)
    assert plant.letters("in") == plant.letters("payments") == {}


def test_a_header_named_as_that_of_redriven_pairs_means_nothing_on_other_messages(plant: Plant) -> None:
    def paid(least: int) -> Flow:
        flow = Flow("paid", sources={"o": "in", "p": "payments"}, schema={"o": "id long", "p": "order long, paid long"})

        @flow.step
        def joined(o: DataFrame, p: DataFrame) -> DataFrame:
            return o.join(p, o.id == p.order)

        flow.expect("enough", f"paid >= {least}")
        flow.to("paid", partition="'all'", headers="_message_o.headers")
        return flow

    own = {"penstock-rows": "mine", "colour": "red"}
    plant.client.push("in", [Message({"id": number}, partition="a", headers=own) for number in (1, 2)])
    plant.client.push("payments", [{"order": 1, "paid": 9}, {"order": 2, "paid": 1}], partition="a")

    assert plant.drain(paid(5))
    written = plant.ids("paid")
    assert plant.client.redrive("in", "paid") == plant.client.redrive("payments", "paid") == 1
    assert plant.drain(paid(0))

    assert written == [1]
    assert plant.ids("paid") == [1, 2]
    headers = [message.headers or {} for message in plant.client.scan("paid", "all")]
    assert [(each["colour"], "penstock-rows" in each) for each in headers] == [("red", False)] * 2


def test_a_message_at_which_a_step_fails_becomes_a_dead_letter_and_its_neighbours_do_not(plant: Plant) -> None:
    flow = Flow("fragile", source="in", schema=ORDERS)
    inverse = functions.udf(lambda amount: 1 / amount, DoubleType())

    @flow.step
    def doubled(df: DataFrame) -> DataFrame:
        return df.withColumn("amount", df.amount * 2)

    @flow.step
    def inverted(df: DataFrame) -> DataFrame:
        return df.withColumn("amount", inverse("amount"))

    flow.to("out")
    plant.client.push("in", [{"id": n, "customer": "c", "amount": float(n != 9)} for n in range(12)], partition="p")
    assert plant.drain(flow), plant.said
    assert plant.ids("out") == [n for n in range(12) if n != 9]
    (letter,) = plant.client.dead_letters("in")
    assert (letter.offset, letter.reason) == (9, "fragile: inverted")
    assert letter.last_error == "ZeroDivisionError: float division by zero"
    assert any("1 messages at which it fails become dead letters" in line for line in plant.said)
    # What Python code raised is searched for at once.
    assert sum("backing off" in line for line in plant.said) == 1


def test_rows_that_a_queue_cannot_take_are_dead_letters_and_stop_nobody(plant: Plant) -> None:
    plant.client.create("out", max_message_bytes=1024)
    values = [("fine", 1), ("", 2), ("x" * 300, 3), ("~lane", 4), ("a\nb", 5)]
    messages = [{"id": number, "customer": name, "amount": 1.0} for name, number in values]
    plant.client.push("in", [*messages, {"id": 6, "customer": "z", "note": "n" * 2000, "amount": 1.0}], partition="p")
    flow = Flow("f", source="in", schema=f"{ORDERS}, note string").to("out", partition="customer")
    assert plant.drain(flow), plant.said
    assert plant.ids("out") == [1]
    assert plant.letters() == {"f: to out: partition": 4, "f: to out: value": 1}


def test_rows_of_which_nobody_can_make_a_message_are_dead_letters_and_stop_nobody(plant: Plant) -> None:
    fine = {"id": 1, "part": "cA==", "name": "aw==", "headers": '{"a": "\u00fc"}'}
    bad = [
        ("partition", {"part": "/w=="}),
        ("partition", {"part": "YcKFYg=="}),
        ("key", {"name": "/w=="}),
        ("key", {"name": "YQBi"}),
        *(("headers", {"headers": text}) for text in ("[1]", '{"a": 1}', '{"a": null}', '{"a": "\\u0000"}', "{")),
    ]
    plant.client.push("in", [fine, *(fine | change for _, change in bad)], partition="p")
    # A field that the schema does not have, and that no parser gets through.
    plant.client.push("in", b'{"id": 2, "other": ' + b"[" * 2000 + b"]" * 2000 + b"}", partition="p")
    plant.client.push("in", {"id": 3}, partition="p")
    flow = Flow("f", source="in", schema="id long, part binary, name binary, headers string, note string")
    flow.route("out", "id = 1", partition="CAST(part AS STRING)", key="CAST(name AS STRING)", headers="headers")
    flow.route("noted", "id = 3", headers="map('note', note)")
    assert plant.drain(flow), plant.said
    (message,) = plant.client.read("out", "p")
    assert (message.key, message.headers) == ("k", {"a": "\u00fc"})
    expected = Counter(f"f: to out: {what}" for what, _ in bad)
    assert plant.letters() == expected | Counter({"f: malformed": 1, "f: to noted: headers": 1})
    # SQL has the same rule for names.
    with psycopg.connect(plant.dsn) as connection:
        told = connection.execute("SELECT penstock.name_problem(U&'a\\0085b') IS NULL").fetchone()
    assert told == (False,)


def test_messages_that_kill_or_garble_are_dead_letters_too(plant: Plant) -> None:
    flow = Flow("fragile", source="in", schema=ORDERS)

    def touchy(number):  # type: ignore[no-untyped-def]
        if number == 4:
            os._exit(1)
        if number == 9:
            raise ValueError("a nul: \0")
        if number == 11:
            raise ValueError("half a pair: \ud800")
        return number

    handled = functions.udf(touchy, LongType())
    flow.step(lambda df: df.withColumn("id", handled("id")))
    flow.to("out")
    plant.client.push("in", [{"id": n, "customer": "c", "amount": 1.0} for n in range(12)], partition="p")
    with plant.running(flow):
        until(lambda: len(plant.ids("out")) == 9, 90)
    assert plant.ids("out") == [n for n in range(12) if n not in (4, 9, 11)]
    letters = {letter.offset: letter.last_error or "" for letter in plant.client.dead_letters("in")}
    assert letters.keys() == {4, 9, 11}
    assert letters[9] == "ValueError: a nul: \\x00"
    assert letters[11] == "ValueError: half a pair: \\ud800"
    assert "Python worker exited unexpectedly" in letters[4]


def test_a_row_that_fails_and_comes_from_no_message_is_rejected_beside_those_that_are_dead_letters(
    plant: Plant,
) -> None:
    flow = Flow("f", source="in", schema="id long")

    @flow.step
    def more(df: DataFrame) -> DataFrame:
        message = functions.col("_message")
        places = {
            1: message,
            2: functions.lit(None).cast(df.schema["_message"].dataType),
            3: message.withField("offset", functions.lit(None).cast("long")),
            4: message.withField("queue", functions.lit("elsewhere")),
        }
        return reduce(
            DataFrame.unionByName,
            (df.withColumn("id", df.id * factor).withColumn("_message", place) for factor, place in places.items()),
        )

    flow.expect("id is positive", "id > 0")
    flow.to("out", partition="'p'")
    plant.client.push("in", [{"id": 1}, {"id": -1}], partition="p")
    assert plant.drain(flow), plant.said
    assert plant.ids("out") == [1, 2, 3, 4]
    assert plant.letters() == {"f: id is positive": 1}
    assert plant.ids("f.rejected") == [-4, -3, -2]


def test_a_step_may_raise_what_it_likes_and_fails_for_the_messages_that_it_fails_at(plant: Plant) -> None:
    flow = Flow("quoting", source="in", schema="id long, text string")

    def quoting(number, text):  # type: ignore[no-untyped-def]
        if number == 3:
            sqlite3.connect(":memory:").execute("SELECT nothing")
        if text is not None:
            raise ValueError(f"cannot parse {text}")
        return number

    handled = functions.udf(quoting, LongType())
    flow.step(lambda df: df.withColumn("id", handled("id", "text")))
    flow.to("out", partition="'p'")
    texts = {1: "x\nCheckpointError: gone\nDataLost: gone"}
    plant.client.push("in", [{"id": n, "text": texts.get(n)} for n in range(4)], partition="p")
    assert plant.drain(flow), plant.said
    assert plant.ids("out") == [0, 2]
    assert {letter.offset for letter in plant.client.dead_letters("in")} == {1, 3}


def test_a_flow_whose_messages_are_gone_is_failed_at_once_and_says_what_to_do(plant: Plant) -> None:
    flow = Flow("f", source="in", schema=ORDERS).to("out")
    plant.client.push("in", orders(1, 5), partition="p")
    assert plant.drain(flow), plant.said
    plant.client.push("in", orders(5, 9), partition="p")
    plant.client.delete("in", partition="p")
    assert not plant.drain(flow)
    (info,) = plant.client.flows()
    assert info.failures == 0
    assert re.fullmatch(r"DataLost: offset 4 of .* `penstock run --reset f` begins with .*", info.error or "")
    assert not any("penstock-" in line for line in plant.said)


def test_what_is_wrong_with_columns_is_told_before_anything_starts(plant: Plant) -> None:
    def broken(df: DataFrame) -> DataFrame:
        return df.select("nothing")

    def narrow(df: DataFrame) -> DataFrame:
        return df.select("id")

    def counted(df: DataFrame) -> DataFrame:
        return df.groupBy("customer").count()

    bad_step = Flow("bad-step", source="in", schema=ORDERS).to("a")
    bad_step.step(broken)
    forgetful = Flow("forgetful", source="in", schema=ORDERS).expect("e", "id > 0").to("b")
    forgetful.step(narrow)
    endless = Flow("endless", source="in", schema=ORDERS).to("h")
    endless.step(counted)
    flows = [
        bad_step,
        forgetful,
        Flow("bad-schema", source="in", schema="id longish").to("c"),
        Flow("bad-expectation", source="in", schema=ORDERS).expect("e", "colour = 1").to("d"),
        Flow("no-boolean", source="in", schema=ORDERS).expect("e", "id + 1").to("e"),
        Flow("bad-route", source="in", schema=ORDERS).route("f", when="colour = 1"),
        Flow("bad-partition", source="in", schema=ORDERS).to("g", partition="colour"),
        endless,
    ]
    with pytest.raises(InvalidInput) as refusal:
        plant.drain(*flows)
    said = str(refusal.value)
    for words in (
        "flow bad-step: step broken:",
        "flow forgetful: step narrow drops _message",
        "flow bad-schema: the schema cannot be read",
        'flow bad-expectation: "e": ',
        "flow no-boolean: \"e\": 'id + 1' is bigint, and must be true or false",
        "flow bad-route: to f: ",
        "flow bad-partition: to g: partition: ",
        "flow endless: [STREAMING_OUTPUT_MODE.UNSUPPORTED_OPERATION]",
    ):
        assert words in said
    assert all(line.startswith(str(Path(__file__))) for line in said.splitlines())
    assert plant.client.flows() == []
    assert plant.client.queues() == []


def test_a_changed_flow_is_refused_and_reset_goes_on_where_it_stood(plant: Plant) -> None:
    flow = Flow("f", source="in", schema=ORDERS).to("out")
    plant.client.push("in", orders(1, 10), partition="p")
    assert plant.drain(flow), plant.said
    # What an earlier version kept of the same flow fits, too.
    with psycopg.connect(plant.dsn) as connection:
        connection.execute("""UPDATE penstock.flows SET shape = '{"sources": [["", "in"]], "state": []}'""")
    assert plant.drain(flow), plant.said

    distinct = Flow("f", source="in", schema=ORDERS)
    distinct.step(lambda df: df.dropDuplicates(["id"]))
    distinct.to("distinct")
    with pytest.raises(InvalidInput, match=r"it cannot go on with its checkpoint.*--reset f"):
        plant.drain(distinct)
    assert plant.client.flows()[0].outputs == ["out"]
    shutil.rmtree(plant.folder / "checkpoints")
    with pytest.raises(InvalidInput, match=r"its checkpoint is not there.*--reset f"):
        plant.drain(flow)
    assert plant.state("f") == "stopped"
    plant.client.push("in", orders(11, 20), partition="p")
    assert plant.drain(distinct, reset=["f"]), plant.said
    assert plant.ids("distinct") == list(range(11, 20))
    assert plant.ids("out") == list(range(1, 10))


def test_the_shape_of_a_flow_is_the_same_each_time_and_another_for_another_state(plant: Plant) -> None:
    def shape(*keys: str, window: tuple[str, ...] = ("1 minute",), factor: int = 1000) -> str:
        flow = Flow("f", source="in", schema=f"{ORDERS}, at timestamp").to("out")

        @flow.step
        def counted(df: DataFrame) -> DataFrame:
            by = [functions.window("at", *window), *map(functions.col, keys)]
            seen = functions.udf(lambda name: name, StringType())
            timely = df.withColumn("customer", seen("customer")).withWatermark("at", "1 minute")
            listed = functions.collect_list(functions.transform(functions.array("id"), lambda x: x * factor))
            return timely.dropDuplicates(["id", "at"]).groupBy(*by).agg(listed.alias("listed"))

        return checking.shape(flow, frames.flow_rows(plant.spark, flow, Connection(plant.dsn)))

    assert shape() == shape()
    known = shape()
    for other in (
        shape("customer"),
        shape(window=("5 minutes",)),
        shape(window=("1 minute", "30 seconds")),
        shape(factor=2000),
    ):
        assert other != known


def test_files_come_in_and_parquet_and_a_table_go_out(plant: Plant) -> None:
    (plant.folder / "files").mkdir()
    lines = [json.dumps(order) for order in [*orders(0, 20), {"id": 20, "customer": "", "amount": 1.0}]]
    (plant.folder / "files" / "a.json").write_text("\n".join(lines))
    load = Flow("load", files=str(plant.folder / "files"), schema=ORDERS).to("in", partition="customer")
    parquet, table = str(plant.folder / "parquet"), str(plant.folder / "table")
    store = clean("store").to_parquet(parquet).to_table("stored_orders", path=table)
    try:
        assert plant.drain(load, store), plant.said
        assert {info.name: info.flow_type for info in plant.client.flows()} == {
            "load": "DATA_SOURCE",
            "store": "DATA_SINK",
            "store.parquet": "DATA_SINK",
            "store.table-2": "DATA_SINK",
        }
        good = [order["id"] for order in orders(0, 20) if order["amount"] > 0]
        for frame in (plant.spark.read.parquet(parquet), plant.spark.table("stored_orders")):
            assert sorted(row.id for row in frame.collect()) == good
        # A row of no message that a queue cannot take stops nobody, and is not lost.
        (rejected,) = plant.client.read("load.rejected", "rejected")
        assert (rejected.json()["id"], rejected.headers) == (20, {"penstock-reason": "load: to in: partition"})
        # A reset of the flow leaves its copies where they are.
        plant.client.push("in", orders(20, 30), partition="p")
        assert plant.drain(load, store, reset=["store"]), plant.said
        assert plant.spark.read.parquet(parquet).count() == plant.spark.table("stored_orders").count() == 27
    finally:
        plant.spark.sql("DROP TABLE IF EXISTS stored_orders")


def test_a_flow_without_a_schema_hands_on_messages_as_they_are(plant: Plant) -> None:
    plant.client.push("in", [b"\xff\x00", None, b"b"], partition="p", key="k")
    flow = Flow("raw", source="in").to("out", partition="partition", key="key")
    assert plant.drain(flow), plant.said
    assert [(message.value, message.key) for message in plant.client.read("out", "p")] == [
        (b"\xff\x00", "k"),
        (None, "k"),
        (b"b", "k"),
    ]


def test_a_null_value_is_a_row_of_nulls_unless_the_schema_wants_a_column(plant: Plant) -> None:
    plant.client.push("in", [Message(None, key="gone"), Message({"id": 1}, key="here"), b"null"], partition="p")
    keep = Flow("keep", source="in", schema="id long").to(
        "out", key="_message.key", value="if(id IS NULL, NULL, to_json(named_struct('id', id)))"
    )
    strict = Flow("strict", source="in", schema="id long NOT NULL").to("other")
    assert plant.drain(keep, strict), plant.said
    assert [(message.key, message.value) for message in plant.client.read("out", "0")] == [
        ("gone", None),
        ("here", b'{"id":1}'),
    ]
    assert plant.ids("other") == [1]
    assert plant.letters() == {"keep: malformed": 1, "strict: malformed": 2}
    found = {letter.value for letter in plant.client.dead_letters("in", "strict")}
    assert found == {None, b"null"}


def test_a_running_flow_pauses_resumes_and_tells_how_it_fares(plant: Plant) -> None:
    gate = str(plant.folder / "gate")

    def passed(number):  # type: ignore[no-untyped-def]
        while number >= 10 and not Path(gate).exists():
            time.sleep(0.02)
        return number

    flow = clean()
    waiting = functions.udf(passed, LongType())
    flow.step(lambda df: df.withColumn("id", waiting("id")))
    plant.client.push("in", orders(0, 10), partition="p")
    with plant.running(flow):
        until(lambda: plant.ids("out") == list(range(1, 10)))
        until(lambda: plant.client.flows()[0].epoch == 0)
        assert plant.state("clean") == "running"
        plant.client.push("in", orders(10, 100), partition="p")
        # An epoch takes as much as the flow's limit says, and until it is published that is warm.
        until(lambda: plant.client.flows()[0].warm)
        (info,) = plant.client.flows()
        assert (info.lag, info.warm, info.cold, info.dead_letters, info.flow_type) == (90, 60, 30, 1, "DATA_SINK")
        assert {(action.action, action.warm, action.cold) for action in plant.client.actions("clean")} == {
            (name, 60, 30) for name in ("euros", "<lambda>", "amount is positive", "to large", "to out")
        }
        # In the middle of that epoch.
        plant.client.pause_flow("clean")
        until(lambda: plant.state("clean") == "paused")
    # Who comes next finds it paused, and does not wait.
    assert plant.state("clean") == "paused"
    assert plant.drain(flow), plant.said
    assert plant.said[-1] == "clean: paused"
    assert plant.ids("out") == list(range(1, 10))
    Path(gate).touch()
    plant.client.resume_flow("clean")
    assert plant.state("clean") == "stopped"
    assert plant.drain(flow), plant.said
    assert plant.ids("out") == [order["id"] for order in orders(0, 100) if order["amount"] > 0]
    assert plant.state("clean") == "finished"
    plant.client.forget_flow("clean")
    assert plant.client.flows() == []


def test_a_flow_that_fails_restarts_alone_and_says_why(plant: Plant) -> None:
    broken = Flow("broken", source="in", schema=ORDERS)
    marker = str(plant.folder / "mended")

    def moody(amount):  # type: ignore[no-untyped-def]
        if not Path(marker).exists():
            raise RuntimeError("the service is away")
        return amount

    calling = functions.udf(moody, DoubleType())
    broken.step(lambda df: df.withColumn("amount", calling("amount")))
    broken.to("broken-out")
    # More than can be poison: then it is the step that is broken, and nothing is given up.
    plant.client.push("in", [{"id": n, "customer": "c", "amount": 1.0} for n in range(150)], partition="p")
    with plant.running(broken, Flow("healthy", source="in", schema=ORDERS).to("out")):
        until(lambda: plant.state("broken") == "backing off")
        (info,) = [info for info in plant.client.flows() if info.name == "broken"]
        assert info.error == "RuntimeError: the service is away"
        until(lambda: len(plant.ids("out")) == 150)
        assert plant.state("healthy") == "running"
        Path(marker).touch()
        until(lambda: len(plant.ids("broken-out")) == 150, 120)
    assert plant.letters() == Counter()


def test_a_second_supervisor_of_the_same_flow_is_refused_and_changes_nothing(plant: Plant) -> None:
    plant.client.push("in", orders(1, 10), partition="p")
    with plant.running(clean()):
        until(lambda: plant.ids("out"))
        checkpoint = plant.client.flows()[0].checkpoint
        for reset in ([], ["clean"]):
            with pytest.raises(Retryable, match=r"is already run by"):
                plant.drain(clean(), reset=reset)
        assert plant.client.flows()[0].checkpoint == checkpoint
        # One that was taken for dead and is not hears of its successor, and stops.
        with psycopg.connect(plant.dsn, autocommit=True) as connection:
            connection.execute("SELECT penstock.heartbeat_flow('clean', 'elsewhere:1:a', 'running', take_over => true)")
        until(lambda: "clean: stopped, since elsewhere:1:a runs it now" in plant.said)
    assert plant.state("clean") == "running"
    with psycopg.connect(plant.dsn, autocommit=True) as connection:
        connection.execute("SELECT penstock.heartbeat_flow('clean', 'elsewhere:1:a', 'stopped')")
    plant.client.push("in", orders(11, 20), partition="p")
    assert plant.drain(clean()), plant.said
    assert plant.ids("out") == [*range(1, 10), *range(11, 20)]


def test_a_flow_is_tested_on_a_few_rows_and_end_to_end_with_the_same_answer(plant: Plant) -> None:
    rows: list[Any] = [{"id": 1, "customer": "a", "amount": 60.0}, {"id": 2, "customer": "a", "amount": -1.0}, b"{"]
    here, there = run_steps(clean(), rows, plant.spark), run_flow(clean(), rows, plant.client, plant.spark)
    assert here["out"] == [{"id": 1, "customer": "a", "amount": 120.0}]
    assert here["large"] == here["out"]
    assert here.dead == [
        Dead("clean: malformed", b"{"),
        Dead("clean: amount is positive", {"id": 2, "customer": "a", "amount": -1.0}),
    ]
    assert here.queues == there.queues
    assert sorted(map(str, here.dead)) == sorted(map(str, there.dead))
    again = run_flow(clean(), [{"id": 3, "customer": "a", "amount": 1.0}], plant.client, plant.spark)
    assert [value["id"] for value in again["out"]] == [1, 3]


def test_a_flow_that_starts_with_the_latest_reads_what_comes_then_and_goes_on_there(plant: Plant) -> None:
    plant.client.push("in", orders(1, 10), partition="p")
    flow = Flow("late", source="in", schema=ORDERS, starting="latest").to("out")
    assert plant.drain(flow), plant.said
    assert plant.values("out") == []
    plant.client.push("in", orders(11, 20), partition="p")
    assert plant.drain(flow), plant.said
    assert plant.ids("out") == list(range(11, 20))
