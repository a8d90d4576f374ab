"""Builds the query of a flow: the frames of its sources, its steps, and one stream of rows for one sink.

Every message to any of its queues, and every message that becomes a dead letter, is a row of that stream: an epoch
publishes them together, and each source is read once. A row becomes several by a list that is unrolled, never by a
second reading.
"""

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, NamedTuple

from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import BinaryType, BooleanType, StringType, StructType

from penstock.errors import InvalidInput
from penstock.pipeline.flow import Flow, Route, Step

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

# Spark's own default has no microseconds.
_TIMES = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"}
_MOST_ERROR = 1000
# What a row of the sink has: a message to a queue, or a message that becomes a dead letter.
_ENTRY = {
    **dict.fromkeys(("queue", "partition", "key"), "string"),
    "value": "binary",
    **dict.fromkeys(("headers", "dead_queue", "dead_partition"), "string"),
    "dead_offset": "long",
    **dict.fromkeys(("dead_reason", "dead_error"), "string"),
}
# And a copy of that message, for one that the log may not have any more.
_COPY = {
    "dead_value": "binary",
    **dict.fromkeys(("dead_key", "dead_headers"), "string"),
    "dead_timestamp": "timestamp",
    "dead_row": "string",
}
# What no name may have, as penstock.name_problem says; Python and Java read it alike.
CONTROL = r"[\x00-\x1f\x7f-\x9f]"
# The header of redriven messages that names the rows they failed with.
_ROWS = "penstock-rows"
# How the private lanes of redriven messages begin.
_LANE = "~redrive/"
# How the columns begin that are made in between.
_OWN = "__penstock_"


class Problem(InvalidInput):
    """Something is wrong with a flow, and `where` is the line that says it."""

    def __init__(self, flow: Flow, where: str, text: str) -> None:
        super().__init__(f"{where}: flow {flow.name}: {text}")


class Connection(NamedTuple):
    """The options of the connector that all queries have."""

    url: str | None
    # What the errors of source and sink are signed with.
    sign: str | None = None

    def options(self) -> dict[str, str]:
        """Return the options that say which penstock is meant."""
        given = {"url": self.url, "errorSign": self.sign}
        return {name: value for name, value in given.items() if value is not None}


def value_schema(spark: "SparkSession", flow: Flow, alias: str) -> StructType | None:
    """Return the columns of a source's values."""
    text = flow.schemas.get(alias)
    if text is None:
        return None
    try:
        schema = spark.createDataFrame([], text).schema
    except PySparkException as error:
        raise Problem(flow, flow.where, f"the schema cannot be read: {first_line(error)}") from None
    names = [name.lower() for name in schema.fieldNames()]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise Problem(flow, flow.where, f"the schema has {', '.join(twice)} twice")
    if flow.message_column(alias) in schema.fieldNames():
        raise Problem(flow, flow.where, f"{flow.message_column(alias)} is reserved for penstock; rename the column")
    from penstock.spark.parsing import kind_of

    for column in schema.fields:
        try:
            kind_of(column.dataType.jsonValue(), column.name)
        except InvalidInput as error:
            raise Problem(flow, flow.where, str(error)) from None
    return schema


def flow_rows(spark: "SparkSession", flow: Flow, connection: Connection) -> "DataFrame":
    """Return what the steps of a flow make of its sources, as a stream."""
    return transform(flow, streams(spark, flow, connection))


def streams(spark: "SparkSession", flow: Flow, connection: Connection) -> "dict[str, DataFrame]":
    """Return the frames that a flow begins with, as streams that go on where its group stands."""
    if flow.files is not None:
        return {"": _files(spark, flow)}
    frames = {}
    for alias, queue in flow.sources.items():
        options = connection.options() | {
            "subscribe": queue,
            "groupId": flow.name,
            "startingOffsets": "committed",
            "maxOffsetsPerTrigger": str(flow.max_messages),
            "maxBytesPerTrigger": flow.max_bytes,
        }
        others = sorted(set(flow.sources.values()) - {queue})
        if others:
            options["readWith"] = ",".join(others)
        frames[alias] = _load(spark.readStream.format("penstock").options(**options), spark, flow, alias)
    return frames


def batches(
    spark: "SparkSession", flow: Flow, connection: Connection, ranges: Mapping[str, tuple[str, str, str]]
) -> "dict[str, DataFrame]":
    """Return the same frames as batches of some ranges; of a queue that has none, an empty one."""
    frames = {}
    for alias, queue in flow.sources.items():
        reader = spark.read.format("penstock").options(**connection.options()).option("groupId", flow.name)
        if queue in ranges:
            assign, start, stop = ranges[queue]
            reader = reader.option("assign", assign).option("startingOffsets", start).option("endingOffsets", stop)
            frames[alias] = _load(reader, spark, flow, alias)
        else:
            frames[alias] = _load(reader.option("subscribe", queue), spark, flow, alias).limit(0)
    return frames


def _load(reader: object, spark: "SparkSession", flow: Flow, alias: str) -> "DataFrame":
    """Load a source: its values' columns and the message's, or the message as it is."""
    schema = value_schema(spark, flow, alias)
    message = flow.message_column(alias)
    if schema is not None:
        frame: DataFrame = (
            reader.option("valueSchema", schema.json())  # type: ignore[attr-defined]
            .option("messageColumn", message)
            .option("messageValue", str(flow.carries_values).lower())
            .load()
        )
        return frame
    raw: DataFrame = reader.load()  # type: ignore[attr-defined]
    fields = ("queue", "partition", "offset", "key", "headers", "timestamp", "id")
    return raw.withColumn(message, F.struct(*fields, *(("value",) if flow.carries_values else ())))


def _files(spark: "SparkSession", flow: Flow) -> "DataFrame":
    assert flow.files is not None  # noqa: S101
    reader = spark.readStream.options(**flow.files.options)
    if flow.files.table is not None:
        return reader.table(flow.files.table)
    reader = reader.format(flow.files.format)
    schema = flow.schemas.get("")
    if schema is not None:
        reader = reader.schema(schema)
    return reader.load(flow.files.path)


def transform(flow: Flow, frames: "Mapping[str, DataFrame]", count: int | None = None) -> "DataFrame":
    """Apply the steps, or so many; the first one gets the sources by their aliases where there are several."""
    steps = flow.steps[:count]
    if len(frames) > 1:
        if not steps:
            raise Problem(flow, flow.where, "several sources need a step that makes one DataFrame of them")
        frame = _apply(flow, steps.pop(0), **frames)
    else:
        frame = next(iter(frames.values()))
    for step in steps:
        before = frame
        frame = _apply(flow, step, before)
        lost = [name for name in flow.message_columns if name in before.columns and name not in frame.columns]
        if lost and flow.expectations and not any(name in frame.columns for name in flow.message_columns):
            raise Problem(
                flow,
                step.where,
                f"step {step.name} drops {', '.join(lost)}, and then nobody knows which message fails "
                f'"{flow.expectations[0].name}": keep the column, or expect it of the flow that reads what this one '
                "writes",
            )
    return frame


def _apply(flow: Flow, step: Step, *frame: "DataFrame", **frames: "DataFrame") -> "DataFrame":
    try:
        made = step.function(*frame, **frames)
    except PySparkException as error:
        raise Problem(flow, step.where, f"step {step.name}: {first_line(error)}") from error
    except Exception as error:
        raise Problem(flow, step.where, f"step {step.name}: {type(error).__name__}: {error}") from error
    if not hasattr(made, "columns") or not hasattr(made, "isStreaming"):
        raise Problem(flow, step.where, f"step {step.name} returns {type(made).__name__}, and must return a DataFrame")
    return made


def sink_rows(flow: Flow, frame: "DataFrame", limits: Mapping[str, int]) -> "DataFrame":
    """Return what the sink writes: a row for each message to a queue, and for each that becomes a dead letter."""
    known = [name for name in flow.message_columns if name in frame.columns]
    if flow.expectations and not known:
        raise Problem(
            flow,
            flow.expectations[0].where,
            f'nobody knows which message fails "{flow.expectations[0].name}", since the rows have no '
            f"{' or '.join(flow.message_columns) or 'message: they come from files'}. Expect it of the flow that reads "
            "what this one writes",
        )
    frame = _without_other_pairs(frame, known)
    columns = [name for name in frame.columns if name not in flow.message_columns]
    if not columns:
        raise Problem(flow, flow.where, "no column is left to write")
    if any(name.lower().startswith(_OWN) for name in columns):
        raise Problem(flow, flow.where, f"columns whose names begin with {_OWN} are kept for penstock")
    checks = [
        (each.name, _condition(flow, frame, each.condition, f'"{each.name}"', each.where)) for each in flow.expectations
    ]
    routes = [(route, _Message(flow, frame, route, columns)) for route in flow.routes]
    for route, message in routes:
        checks += message.checks(limits.get(route.queue))
    failed = reduce(
        lambda otherwise, check: F.when(~check[1], F.lit(check[0])).otherwise(otherwise),
        reversed(checks),
        F.lit(None).cast("string"),
    )
    prepared = frame.select(
        "*",
        failed.alias(f"{_OWN}failed"),
        *(message.value.alias(f"{_OWN}value{i}") for i, (_, message) in enumerate(routes)),
    )
    alive = F.col(f"{_OWN}failed").isNull()
    entries = []
    for index, (route, message) in enumerate(routes):
        wanted = alive if route.when is None else alive & _condition(flow, frame, route.when, route.name, route.where)
        entries.append(F.when(wanted, message.struct(F.col(f"{_OWN}value{index}"))))
    if checks:
        entries += [*(_dead(flow, name, columns, known) for name in known), _rejected(flow, columns, known)]
    rows = prepared.select(F.explode(F.filter(F.array(*entries), lambda entry: entry.isNotNull())).alias("row"))
    return rows.select("row.*")


def _without_other_pairs(frame: "DataFrame", known: Sequence[str]) -> "DataFrame":
    """Leave out rows of several messages that redriven ones make beside the rows that they failed with.

    What a redriven message was first is still in the state of a join. So it would meet the partners of old, for whom
    the row was written long ago, and a pair that was redriven would come three times: new with old, old with new, and
    new with new. Of rows with a redriven message, those count of which all messages failed together.

    Only a redriven message is in a lane, where nobody else can push. The header of any other means nothing: it may be
    somebody's own, or have come along from the flow before.
    """
    if len(known) < 2:
        return frame
    messages = [_column(name) for name in known]
    rows = [
        F.when(
            message["partition"].startswith(_LANE),
            F.split(F.get_json_object(message["headers"], f"$['{_ROWS}']"), ","),
        )
        for message in messages
    ]
    none = F.array().cast("array<string>")
    shared = reduce(
        lambda so_far, one: F.when(one[0]["offset"].isNull(), so_far).otherwise(
            F.array_intersect(so_far, F.coalesce(one[1], none))
        ),
        zip(messages, rows, strict=True),
        F.concat(*(F.coalesce(one, none) for one in rows)),
    )
    return frame.filter(F.coalesce(*rows).isNull() | (F.size(shared) > 0))


def _condition(flow: Flow, frame: "DataFrame", text: str, name: str, where: str) -> "Column":
    try:
        kind = frame.select(F.expr(text)).schema.fields[0].dataType
    except PySparkException as error:
        raise Problem(flow, where, f"{name}: {first_line(error)}") from None
    if not isinstance(kind, BooleanType):
        raise Problem(flow, where, f"{name}: {text!r} is {kind.simpleString()}, and must be true or false")
    return F.coalesce(F.expr(text), F.lit(False))


class _Message:
    """The expressions of one route."""

    def __init__(self, flow: Flow, frame: "DataFrame", route: Route, columns: list[str]) -> None:
        self._flow, self._frame, self._route = flow, frame, route
        self._partition = self._home(self._text("partition", route.partition))
        self._key = self._text("key", route.key)
        # What a redriven message failed with here is no matter of those who read what is written.
        self._headers = F.to_json(F.map_filter(self._header_texts(), lambda name, _: name != _ROWS))
        self.value = self._value(columns)

    def struct(self, value: "Column") -> "Column":
        return _entry(
            self._flow,
            queue=F.lit(self._route.queue),
            partition=self._partition,
            key=self._key,
            value=value,
            headers=self._headers,
        )

    def checks(self, most_bytes: "int | None") -> "list[tuple[str, Column]]":
        """Return what the queue itself expects of a message, for rows that go there: one bad row stops nobody."""
        route = self._route
        elsewhere = (
            F.lit(False)
            if route.when is None
            else ~_condition(self._flow, self._frame, route.when, route.name, route.where)
        )
        found = []
        if route.partition is not None:
            name = self._partition
            valid = (
                F.octet_length(name).between(1, 255)
                & F.is_valid_utf8(name)
                & ~name.rlike(CONTROL)
                & ~name.startswith("~")
                & (name != "*")
            )
            found.append((f"{route.name}: partition", elsewhere | name.isNull() | valid))
        if route.key is not None:
            valid = (F.octet_length(self._key) > 0) & _is_text(self._key)
            found.append((f"{route.name}: key", elsewhere | self._key.isNull() | valid))
        if route.headers is not None:
            found.append((f"{route.name}: headers", elsewhere | self._headers_fit()))
        if most_bytes is not None:
            # A null value has no length, and fits.
            fits = F.coalesce(F.octet_length(self.value) <= most_bytes, F.lit(True))
            found.append((f"{route.name}: value", elsewhere | fits))
        return found

    def _text(self, what: str, expression: str | None) -> "Column":
        if expression is None:
            return F.lit(None).cast("string")
        kind = self._kind(what, expression)
        if kind.startswith(("struct", "array", "map", "binary")):
            raise Problem(self._flow, self._route.where, f"{self._route.name}: {what} is {kind}, and must be a text")
        return F.expr(expression).cast("string")

    def _header_texts(self) -> "Column":
        """Return the headers as a map of texts; null where they are given as JSON and are no object of texts."""
        expression = self._route.headers
        if expression is None:
            return F.lit(None).cast("map<string,string>")
        if self._kind("headers", expression) == "map<string,string>":
            return F.expr(expression)
        given = self._text("headers", expression)
        parsed = F.try_variant_get(F.try_parse_json(given), "$", "map<string,variant>")
        texts = F.transform_values(parsed, lambda _, value: F.try_variant_get(value, "$", "string"))
        only_texts = F.forall(F.map_values(parsed), lambda value: F.schema_of_variant(value) == "STRING")
        return F.when(F.is_valid_utf8(given) & only_texts, texts)

    def _headers_fit(self) -> "Column":
        """Say of each row whether its headers can be taken, or are none."""
        texts = self._header_texts()
        valid = F.forall(
            F.map_entries(texts),
            lambda entry: _is_text(entry["key"]) & F.coalesce(_is_text(entry["value"]), F.lit(False)),
        )
        return F.expr(self._route.headers or "NULL").isNull() | F.coalesce(valid, F.lit(False))

    def _home(self, partition: "Column") -> "Column":
        """Return where a row goes that comes from a redriven message: a lane is nobody's partition but its own."""
        messages = [_column(name) for name in self._flow.message_columns if name in self._frame.columns]
        if not messages or self._route.partition is None:
            return partition
        first = [F.get_json_object(message["headers"], "$['penstock-partition']") for message in messages]
        return F.when(partition.startswith(_LANE), F.coalesce(*first, partition)).otherwise(partition)

    def _value(self, columns: list[str]) -> "Column":
        expression = self._route.value
        if expression is None and "value" in columns and isinstance(self._frame.schema["value"].dataType, BinaryType):
            expression = "value"
        if expression is None:
            return F.to_json(F.struct(*map(_column, columns)), _TIMES).cast("binary")
        kind = self._kind("value", expression)
        if kind not in (StringType().simpleString(), BinaryType().simpleString()):
            raise Problem(
                self._flow, self._route.where, f"{self._route.name}: value is {kind}, and must be a text or bytes"
            )
        return F.expr(expression).cast("binary")

    def _kind(self, what: str, expression: str) -> str:
        try:
            return self._frame.select(F.expr(expression)).schema.fields[0].dataType.simpleString()
        except PySparkException as error:
            raise Problem(self._flow, self._route.where, f"{self._route.name}: {what}: {first_line(error)}") from None


def _is_text(column: "Column") -> "Column":
    """Say whether PostgreSQL takes it as a text: casts of bytes to a string are not checked by Spark."""
    return F.is_valid_utf8(column) & ~column.contains("\0")


def _entry(flow: Flow, **given: "Column") -> "Column":
    """Return a row of the sink as a struct; what is not given is null."""
    kinds = _ENTRY | (_COPY if flow.carries_values else {})
    return F.struct(*(given.get(name, F.lit(None)).cast(kind).alias(name) for name, kind in kinds.items()))


def _dead(flow: Flow, message: str, columns: list[str], known: Sequence[str]) -> "Column":
    """Return the entry that makes a dead letter of the message of a row that failed."""
    failed = F.col(f"{_OWN}failed")
    place = _column(message)
    copy = {}
    if flow.carries_values:
        copy = {f"dead_{name}": place[name] for name in ("value", "key", "headers", "timestamp")}
        if len(known) > 1:
            copy["dead_row"] = F.md5(F.concat_ws(",", *(_column(name)["id"] for name in known)).cast("binary"))
    entry = _entry(
        flow,
        dead_queue=place["queue"],
        dead_partition=place["partition"],
        dead_offset=place["offset"],
        dead_reason=F.concat(F.lit(f"{flow.name}: "), failed),
        dead_error=F.substring(F.to_json(F.struct(*map(_column, columns)), _TIMES), 1, _MOST_ERROR),
        **copy,
    )
    return F.when(failed.isNotNull() & _comes_from(flow, message), entry)


def _comes_from(flow: Flow, message: str) -> "Column":
    """Say whether a row comes from a message that its column names: rows that a step adds may have none, or no such."""
    place = _column(message)
    known = place["queue"].isin(*flow.sources.values()) & place["partition"].isNotNull() & (place["offset"] >= 0)
    return F.coalesce(known, F.lit(False))


def _rejected(flow: Flow, columns: list[str], known: Sequence[str]) -> "Column":
    """Return the entry for a row that fails and that comes from no message: it goes to a queue that can take it."""
    failed = F.col(f"{_OWN}failed")
    entry = _entry(
        flow,
        queue=F.lit(flow.rejects),
        partition=F.lit("rejected"),
        value=F.substring(F.to_json(F.struct(*map(_column, columns)), _TIMES), 1, _MOST_ERROR),
        headers=F.to_json(F.create_map(F.lit("penstock-reason"), F.concat(F.lit(f"{flow.name}: "), failed))),
    )
    nobodys = reduce(lambda so_far, name: so_far & ~_comes_from(flow, name), known, failed.isNotNull())
    return F.when(nobodys, entry)


def _column(name: str) -> "Column":
    """Return a column by its name, whatever characters that has."""
    return F.col(f"`{name.replace('`', '``')}`")


def first_line(error: Exception) -> str:
    """Return the sentence of Spark's that says what is wrong."""
    text = error.getMessage() if isinstance(error, PySparkException) else None
    return (text or str(error)).strip().splitlines()[0]
