"""Checks flows before anything starts, and computes the shape of a flow that its checkpoint depends on.

All problems of all flows are found and reported together, so that a file can be fixed in one go.
"""

import contextlib
import io
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException

from penstock.errors import InvalidFlows, InvalidInput
from penstock.pipeline import frames
from penstock.pipeline.flow import Flow
from penstock.pipeline.frames import CONTROL, Connection, Problem, first_line
from penstock.spark.options import read_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# The operators for which Spark keeps state in the checkpoint, each at the beginning of its line of the plan.
_STATEFUL = re.compile(
    r"^[ :+-]*~?((?:Aggregate|Join|Deduplicate\w*|EventTimeWatermark|FlatMapGroups\w*|TransformWithState\w*|GlobalLimit"
    r"|Window)\b.*)$",
    re.MULTILINE,
)
# Those that may keep a row for later.
_HOLDING = re.compile(r"^[ :+-]*~?(?:Join|FlatMapGroups\w*|TransformWithState\w*)\b", re.MULTILINE)
# What Spark makes anew each time that it plans the same query: ids, addresses, and the seeds of random numbers.
_PASSING = re.compile(
    r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|(?<=lambda )\w+#\d+|#\d+L?|@[0-9a-f]+|\bplan_id=\d+"
    r"|(?<=\brand\()-?\d+|(?<=\brandn\()-?\d+|\bSome\(-?\d+\)"
)
# The lengths of a window: Spark computes it in a line of its own, below the operator that has the state.
_WINDOW = re.compile(r"^.*\bprecisetimestampconversion\b.*$", re.MULTILINE)
_LENGTH = re.compile(r"[%+-] \d+|[^()#]+(?= as interval\))")
# A shape says how it was made. Those of earlier versions left out large numbers.
_VERSION = 2
_PASSING_EARLIER = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|#\d+L?|\d{3,}")
# Where PySpark logs what Spark refuses.
_REFUSALS = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
_FIELDS = "spark.sql.debug.maxToStringFields"
_TRIGGER = re.compile(
    r"\s*(interval\s+)?(\d+(\.\d+)?\s*(microsecond|millisecond|second|minute|hour|day|week)s?\s*)+", re.IGNORECASE
)


def prepare(flows: Sequence[Flow]) -> None:
    """Raise an error for problems that can be found without Spark: names, sources, outputs and cycles."""
    problems: list[str] = []
    for flow in flows:
        if flow.copies and flow.copied_queue is None:
            flow.to(f"{flow.name}.rows")
        problems += _own_problems(flow)
    for what, of in (
        ("name", lambda flow: flow.names),
        ("checkpoint", lambda flow: [flow.checkpoint] if flow.checkpoint else []),
        ("folder or table", lambda flow: [copy.place for copy in flow.copies]),
    ):
        times = Counter(name for flow in flows for name in of(flow))
        problems += [
            f"{flow.where}: flow {flow.name}: another flow has this {what}: {name}"
            for flow in flows
            for name in of(flow)
            if times[name] > 1
        ]
    problems += _cycles(flows)
    _refuse(problems)


def check(spark: "SparkSession", flows: Sequence[Flow], connection: Connection) -> "dict[str, DataFrame]":
    """Build every flow as it would run; return the rows that its steps make, or raise an error with all problems."""
    problems: list[str] = []
    made = {}
    for flow in flows:
        try:
            with _unlogged():
                made[flow.name] = _checked(spark, flow, connection)
        except InvalidInput as error:
            problems.append(str(error))
    _refuse(problems)
    return made


def _checked(spark: "SparkSession", flow: Flow, connection: Connection) -> "DataFrame":
    frame = frames.transform(flow, _begin(spark, flow, connection))
    if not frame.isStreaming:
        raise Problem(flow, flow.where, "its steps end in a DataFrame that does not come from its source")
    if not flow.carries_values and flow.files is None and _outlives_messages(flow, frame):
        flow.carries_values = True
        frame = frames.transform(flow, _begin(spark, flow, connection))
    _check_streams(spark, flow, frame)
    return frame


@contextlib.contextmanager
def _unlogged() -> Iterator[None]:
    """Keep Spark from logging what it refuses, with all of Java's stack: it is reported in one line, with its place."""
    from pyspark.logger import PySparkLogger

    loggers = [PySparkLogger.getLogger(name) for name in _REFUSALS]
    before = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    finally:
        for logger, was in zip(loggers, before, strict=True):
            logger.disabled = was


def _outlives_messages(flow: Flow, frame: "DataFrame") -> bool:
    """Say whether rows of one source may come out long after their messages were read."""
    return any(name in frame.columns for name in flow.message_columns) and bool(_HOLDING.search(_explained(frame)))


def _begin(spark: "SparkSession", flow: Flow, connection: Connection) -> "dict[str, DataFrame]":
    try:
        return frames.streams(spark, flow, connection)
    except PySparkException as error:
        raise Problem(flow, flow.where, f"its source cannot be read: {first_line(error)}") from None


def _check_streams(spark: "SparkSession", flow: Flow, frame: "DataFrame") -> None:
    """Refuse rows that cannot be written, and what Spark can do in a batch but not in a stream that is appended to."""
    try:
        rows = frames.sink_rows(flow, frame, {})
        if hasattr(rows, "_jdf"):
            # The very check that Spark makes when the query starts; a Connect server makes it only then.
            jvm: Any = spark._jvm
            jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker.checkForStreaming(
                rows._jdf.queryExecution().analyzed(), jvm.org.apache.spark.sql.streaming.OutputMode.Append()
            )
    except PySparkException as error:
        raise Problem(flow, flow.steps[-1].where if flow.steps else flow.where, first_line(error)) from None


def shape(flow: Flow, frame: "DataFrame") -> str:
    """Return what a checkpoint depends on, as JSON: the sources, and what Spark keeps state for."""
    spark = frame.sparkSession
    before = spark.conf.get(_FIELDS, None)
    # Or an operator with many columns would say how many more there are, and not which.
    spark.conf.set(_FIELDS, "100000")
    try:
        plan = _analyzed(frame)
    finally:
        spark.conf.unset(_FIELDS) if before is None else spark.conf.set(_FIELDS, before)
    stateful = [_PASSING.sub("", found[1]) for found in _STATEFUL.finditer(plan)]
    windows = [" ".join(dict.fromkeys(_LENGTH.findall(found[0]))) for found in _WINDOW.finditer(plan)]
    return json.dumps({"version": _VERSION, "sources": _sources(flow), "state": stateful, "windows": windows})


def earlier_shape(flow: Flow, frame: "DataFrame") -> str:
    """Return the same as versions before this one would have: what is kept of a flow that has not been reset since."""
    stateful = [_PASSING_EARLIER.sub("", found[1]) for found in _STATEFUL.finditer(_analyzed(frame))]
    return json.dumps({"sources": _sources(flow), "state": stateful})


def _sources(flow: Flow) -> list[Any]:
    return [*flow.sources.items()] if flow.files is None else [str(flow.files.path or flow.files.table)]


def _analyzed(frame: "DataFrame") -> str:
    plan = _explained(frame)
    return plan.partition("== Analyzed Logical Plan ==")[2].partition("== Optimized Logical Plan ==")[0]


def _explained(frame: "DataFrame") -> str:
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        frame.explain(True)
    return text.getvalue()


def difference(before: str, now: str) -> str:
    """Return what has changed in a shape."""
    old, new = json.loads(before or "{}"), json.loads(now)
    return ", ".join(
        f"{name} was {json.dumps(old.get(name))} and is {json.dumps(new[name])}"
        for name in new
        if name != "version" and old.get(name) != new[name]
    )


def _own_problems(flow: Flow) -> list[str]:
    found = []
    if not flow.name or len(flow.name.encode()) > 200 or not flow.name.isprintable() or flow.name[0] in "~*":
        found.append((flow.where, "a name has 1 to 200 printable characters, and does not begin with ~ or *"))
    if not flow.routes:
        found.append((flow.where, "it has no output: add `to`, `route`, `to_parquet` or `to_table`"))
    if (not all(flow.sources) and len(flow.sources) > 1) or not all(
        alias.isidentifier() for alias in flow.sources if alias
    ):
        found.append(
            (
                flow.where,
                "the aliases of its sources must be Python identifiers: they are the arguments of its first step",
            )
        )
    if not _TRIGGER.fullmatch(flow.trigger):
        found.append((flow.where, f'trigger is {flow.trigger!r} but must be a time such as "10 seconds"'))
    try:
        limits = {"maxOffsetsPerTrigger": str(flow.max_messages), "maxBytesPerTrigger": flow.max_bytes}
        read_options({"subscribe": "any", **limits}, streaming=True)
    except InvalidInput as error:
        found.append((flow.where, f"max_messages or max_bytes: {error}"))
    queues = list(flow.sources.values())
    found += [(flow.where, f"it cannot read {queue!r}: {why}") for queue in queues if (why := _name_problem(queue))]
    # The connector takes several queues with commas between them.
    found += [
        (flow.where, f"it cannot read {queue!r}: the connector would take it for several queues")
        for queue in queues
        if "," in queue or queue != queue.strip()
    ]
    if len(set(queues)) < len(queues):
        found.append((flow.where, "it reads the same queue twice: read it once and split it in a step"))
    names = [step.name for step in flow.steps] + [expectation.name for expectation in flow.expectations]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        found.append((flow.where, f"two of its steps and expectations are called {', '.join(twice)}"))
    found += [(each.where, "an expectation needs a name") for each in flow.expectations if not each.name.strip()]
    unconditional = [route.queue for route in flow.routes if route.when is None]
    for route in flow.routes:
        if why := _name_problem(route.queue):
            found.append((route.where, f"it cannot write to {route.queue!r}: {why}"))
        if route.queue in flow.sources.values():
            found.append((route.where, f"it writes to {route.queue}, which it reads: that never ends"))
        if unconditional.count(route.queue) > 1 or (route.when is not None and route.queue in unconditional):
            found.append((route.where, f"rows go to {route.queue} twice"))
    return [f"{where}: flow {flow.name}: {text}" for where, text in dict.fromkeys(found)]


def _name_problem(queue: str) -> str | None:
    if not 1 <= len(queue.encode()) <= 255:
        return "a name has 1 to 255 bytes"
    if re.search(CONTROL, queue):
        return "a name has no control characters"
    return "a name does not begin with ~, and is not *" if queue[0] == "~" or queue == "*" else None


def levels(flows: Sequence[Flow]) -> dict[str, int]:
    """Return how many flows lie before each, at most: those of one level can run beside each other."""
    found: dict[str, int] = {}

    def level(flow: Flow) -> int:
        if flow.name not in found:
            below = [other for other in flows if set(other.outputs) & set(flow.sources.values())]
            found[flow.name] = 1 + max(map(level, below), default=0)
        return found[flow.name]

    for flow in flows:
        level(flow)
    return found


def _cycles(flows: Sequence[Flow]) -> list[str]:
    after: Mapping[str, list[str]] = {
        flow.name: [
            other.name for other in flows if other is not flow and set(flow.outputs) & set(other.sources.values())
        ]
        for flow in flows
    }
    found: list[str] = []
    done: set[str] = set()

    def walk(path: list[str]) -> None:
        for name in after[path[-1]]:
            if name in path:
                loop = path[path.index(name) :]
                found.append(f"the flows form a cycle: {' → '.join([*loop, name])}")
            elif name not in done:
                walk([*path, name])
        done.add(path[-1])

    for flow in flows:
        if flow.name not in done:
            walk([flow.name])
    return found


def _refuse(problems: Sequence[str]) -> None:
    if problems:
        raise InvalidFlows("\n".join(dict.fromkeys(problems)))
