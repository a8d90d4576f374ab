"""The options of Spark's reader and writer: what they accept, and what they say to the rest."""

from datetime import UTC, datetime

import pytest

from penstock import InvalidInput, SetupError
from penstock.spark.options import EARLIEST, LATEST, READ_OPTIONS, check_read_options, read_options, write_options
from penstock.spark.sessions import check_version

URL = "postgresql://ada:secret@db/penstock"
BAD = {
    "nothing to read": ({}, "give one of subscribe, subscribePattern and assign; none was given"),
    "two ways": ({"subscribe": "a", "assign": '{"a": ["p"]}'}, "subscribe and assign was given"),
    "unknown": (
        {"subscribe": "a", "topic": "b"},
        f"unknown option topic; the known ones are {', '.join(READ_OPTIONS)}",
    ),
    "a path": ({"subscribe": "a", "path": "/x"}, "penstock has no paths"),
    "offsets and a time": (
        {"subscribe": "a", "startingOffsets": "earliest", "startingTimestamp": "1"},
        "not both",
    ),
    "a group of some partitions": ({"assign": '{"a": ["p"]}', "groupId": "g"}, "groupId follows whole queues"),
    "an end of a stream": ({"subscribe": "a", "endingOffsets": "latest"}, "a stream has no end"),
    "no offsets": ({"subscribe": "a", "startingOffsets": "first"}, "it must be earliest, latest or JSON"),
    "no offset": ({"subscribe": "a", "startingOffsets": '{"a": {"p": -3}}'}, "-3 is not an offset"),
    "a boolean offset": ({"subscribe": "a", "startingOffsets": '{"a": {"p": true}}'}, "True is not an offset"),
    "no partitions": ({"subscribe": "a", "startingOffsets": '{"a": 1}'}, "must have partitions and offsets"),
    "no time": ({"subscribe": "a", "startingTimestamp": "yesterday"}, "milliseconds since 1970"),
    "a time without its zone": ({"subscribe": "a", "startingTimestamp": "2026-01-31T12:00:00"}, "with its zone"),
    "no messages": ({"subscribe": "a", "maxOffsetsPerTrigger": "0"}, "above 0"),
    "no bytes": ({"subscribe": "a", "maxBytesPerTrigger": "1x"}, "a number of bytes"),
    "no flag": ({"subscribe": "a", "failOnDataLoss": "maybe"}, "true or false"),
    "an empty name": ({"subscribe": "a,,b"}, "queue names with commas"),
    "offsets by time and a time": (
        {"subscribe": "a", "startingTimestamp": "1", "startingOffsetsByTimestamp": '{"a": {"p": 1}}'},
        "give startingTimestamp or startingOffsetsByTimestamp, not both",
    ),
    "no moments": ({"subscribe": "a", "startingOffsetsByTimestamp": '{"a": 1}'}, "it must be JSON such as"),
    "no moment": ({"subscribe": "a", "startingOffsetsByTimestamp": '{"a": {"p": "x"}}'}, "milliseconds since 1970"),
    "an ending time of a stream": ({"subscribe": "a", "endingTimestamp": "1"}, "a stream has no end"),
    "a delay for nothing": (
        {"subscribe": "a", "maxTriggerDelay": "1m"},
        "maxTriggerDelay requires minOffsetsPerTrigger",
    ),
    "no delay": ({"subscribe": "a", "minOffsetsPerTrigger": "1", "maxTriggerDelay": "soon"}, "such as 30s, 15m or 1h"),
    "a least above the most": (
        {"subscribe": "a", "minOffsetsPerTrigger": "2", "maxOffsetsPerTrigger": "1"},
        "minOffsetsPerTrigger is 2, and maxOffsetsPerTrigger 1",
    ),
    "a time out of reach": ({"subscribe": "a", "startingTimestamp": "9" * 20}, "startingTimestamp is"),
    "a moment out of reach": (
        {"subscribe": "a", "startingOffsetsByTimestamp": '{"a": {"p": 99999999999999999999999}}'},
        "in the years 1 to 9999",
    ),
    "brackets without end": ({"subscribe": "a", "startingOffsets": "[" * 100_000}, "[…', which cannot be used"),
    "more tasks than numbers": ({"subscribe": "a", "minPartitions": "9" * 400}, "9223372036854775807 at most"),
    "more messages than numbers": ({"subscribe": "a", "maxOffsetsPerTrigger": "9" * 25}, "maxOffsetsPerTrigger is"),
    "a delay without end": (
        {"subscribe": "a", "minOffsetsPerTrigger": "1", "maxTriggerDelay": "9" * 400 + "d"},
        "maxTriggerDelay is",
    ),
    "others without a group": ({"subscribe": "a", "readWith": "b"}, "readWith requires groupId"),
    "an empty assignment": ({"assign": '{"a": []}'}, "it must be JSON such as"),
}


@pytest.mark.parametrize(("given", "said"), BAD.values(), ids=BAD)
def test_a_stream_refuses(given: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        read_options({"url": URL, **given}, streaming=True)
    assert said in str(refusal.value)
    assert "secret" not in str(refusal.value)


@pytest.mark.parametrize("option", ["maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger"])
def test_a_batch_refuses_what_is_for_streams(option: str) -> None:
    with pytest.raises(InvalidInput, match=f"{option} is for streams"):
        read_options({"subscribe": "a", option: "1"}, streaming=False)


@pytest.mark.parametrize("given", [{"startingOffsets": "latest"}, {"endingOffsets": "earliest"}])
def test_a_batch_refuses_to_read_nothing(given: dict[str, str]) -> None:
    with pytest.raises(InvalidInput, match="nothing to read"):
        read_options({"subscribe": "a", **given}, streaming=False)


def test_before_anybody_knows_whether_it_is_a_batch_or_a_stream_what_suits_neither_is_refused() -> None:
    check_read_options({"subscribe": "a", "maxOffsetsPerTrigger": "1", "startingOffsets": "latest"})
    check_read_options({"subscribe": "a", "endingTimestamp": "1"})
    with pytest.raises(InvalidInput, match="unknown option topic"):
        check_read_options({"subscribe": "a", "topic": "b"})
    with pytest.raises(InvalidInput, match="a batch reads its whole range at once"):
        check_read_options({"subscribe": "a", "endingTimestamp": "1", "maxOffsetsPerTrigger": "1"})


def test_times_of_partitions_are_read() -> None:
    options = read_options(
        {
            "subscribe": "a",
            "startingOffsetsByTimestamp": '{"a": {"p": 1000, "q": "2026-01-31T12:00:00+00:00"}}',
            "endingTimestamp": "2000",
        },
        streaming=False,
    )
    assert options.starting_times == {
        "a": {"p": datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), "q": datetime(2026, 1, 31, 12, tzinfo=UTC)}
    }
    assert options.ending_time == datetime(1970, 1, 1, 0, 0, 2, tzinfo=UTC)
    waiting = {"subscribe": "a", "minOffsetsPerTrigger": "5", "maxTriggerDelay": "90s"}
    assert read_options(waiting, streaming=True).max_delay == 90
    assert read_options({"subscribe": "a", "minOffsetsPerTrigger": "5"}, streaming=True).max_delay == 900


def test_a_stream_begins_at_the_end_and_a_batch_at_the_beginning() -> None:
    assert read_options({"subscribe": "a"}, streaming=True).starting == LATEST
    batch = read_options({"subscribe": "a"}, streaming=False)
    assert (batch.starting, batch.ending) == (EARLIEST, LATEST)


def test_names_of_options_are_not_case_sensitive_and_values_are_read() -> None:
    options = read_options(
        {
            "SUBSCRIBE": "a, b",
            "startingtimestamp": "1769860800000",
            "maxBytesPerTrigger": "2m",
            "maxOffsetsPerTrigger": "10",
            "minPartitions": "4",
            "failondataloss": "False",
            "groupid": "g",
        },
        streaming=True,
    )
    assert options.queues == ("a", "b")
    assert options.starting_time == datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert (options.max_bytes, options.max_offsets, options.min_partitions) == (2 << 20, 10, 4)
    assert (options.fail_on_data_loss, options.group) == (False, "g")


def test_the_address_is_the_option_else_the_variable_else_embedded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_URL", "postgresql://variable/db")
    assert read_options({"subscribe": "a", "url": URL}, streaming=False).target.url == URL
    assert read_options({"subscribe": "a"}, streaming=False).target.url == "postgresql://variable/db"
    monkeypatch.delenv("PENSTOCK_URL")
    assert write_options({"queue": "a"}).target.url is None


def test_the_password_is_not_shown() -> None:
    options = write_options({"queue": "a", "url": URL})
    assert "secret" not in f"{options!r} {options.target}"


def test_a_writer_refuses_a_readers_options() -> None:
    with pytest.raises(InvalidInput, match="unknown option subscribe; the known ones are url, queue"):
        write_options({"subscribe": "a"})


@pytest.mark.parametrize("version", ["4.2.0", "4.3.0", "5.0.0-preview1"])
def test_a_spark_that_is_new_enough_is_taken(version: str) -> None:
    check_version(version)


@pytest.mark.parametrize("version", ["3.5.9", "4.1.4", "unknown"])
def test_an_older_spark_is_refused_by_its_version(version: str) -> None:
    with pytest.raises(SetupError, match=f"this is Spark {version}, and penstock needs 4.2 or later"):
        check_version(version)
