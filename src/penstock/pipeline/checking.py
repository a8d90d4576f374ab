"""Everything that can be refused before anything starts, and the shape of a flow that its checkpoint depends on.

All problems of all flows are found, and told together: whoever mends a file wants to mend it once.
"""

import contextlib
import io
import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException

from penstock.errors import InvalidInput
from penstock.pipeline import frames
from penstock.pipeline.flow import Flow
from penstock.pipeline.frames import Connection, Problem, first_line

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# The operators for which Spark keeps state in the checkpoint.
_STATEFUL = re.compile(
    r"\b(Aggregate|Join|Deduplicate\w*|EventTimeWatermark|FlatMapGroups\w*|TransformWithState\w*|GlobalLimit|Window)\b.*"
)


def prepare(flows: Sequence[Flow]) -> None:
    """Refuse what can be seen without Spark: names, ends and cycles."""
    problems: list[str] = []
    for flow in flows:
        if flow.copies and flow.copied_queue is None:
            flow.to(f"{flow.name}.rows")
        problems += _own_problems(flow)
    names = [flow.name for flow in flows]
    problems += [
        f"{flow.where}: flow {flow.name}: another flow has this name" for flow in flows if names.count(flow.name) > 1
    ]
    problems += _cycles(flows)
    _refuse(problems)


def check(spark: "SparkSession", flows: Sequence[Flow], connection: Connection) -> "dict[str, DataFrame]":
    """Build every flow as it would run; return the rows that its steps make, or refuse with all that is wrong."""
    problems: list[str] = []
    made = {}
    for flow in flows:
        try:
            frame = frames.transform(flow, _begin(spark, flow, connection))
            frames.sink_rows(flow, frame, {})
            if not frame.isStreaming:
                raise Problem(flow, flow.where, "its steps end in a DataFrame that does not come from its source")
            made[flow.name] = frame
        except InvalidInput as error:
            problems.append(str(error))
    _refuse(problems)
    return made


def _begin(spark: "SparkSession", flow: Flow, connection: Connection) -> "dict[str, DataFrame]":
    try:
        return frames.streams(spark, flow, connection, starting="committed")
    except PySparkException as error:
        raise Problem(flow, flow.where, f"its source cannot be read: {first_line(error)}") from None


def shape(flow: Flow, frame: "DataFrame") -> str:
    """Return what a checkpoint depends on, as JSON: the sources, and what Spark keeps state for."""
    plan = _explained(frame)
    analyzed = plan.partition("== Analyzed Logical Plan ==")[2].partition("== Optimized Logical Plan ==")[0]
    stateful = [re.sub(r"#\d+L?|\d{3,}", "", found[0]) for found in _STATEFUL.finditer(analyzed)]
    sources = [*flow.sources.items()] if flow.files is None else [str(flow.files.path or flow.files.table)]
    return json.dumps({"sources": sources, "state": stateful})


def _explained(frame: "DataFrame") -> str:
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        frame.explain(True)
    return text.getvalue()


def difference(before: str, now: str) -> str:
    """Say what of a shape has changed."""
    old, new = json.loads(before or "{}"), json.loads(now)
    return ", ".join(
        f"{name} was {json.dumps(old.get(name))} and is {json.dumps(new[name])}"
        for name in new
        if old.get(name) != new[name]
    )


def _own_problems(flow: Flow) -> list[str]:
    found = []
    if not flow.name or len(flow.name.encode()) > 200 or not flow.name.isprintable() or flow.name[0] in "~*":
        found.append((flow.where, "a name has 1 to 200 printable characters, and does not begin with ~ or *"))
    if not flow.routes:
        found.append((flow.where, "it goes nowhere: say `to`, `route`, `to_parquet` or `to_table`"))
    if (not all(flow.sources) and len(flow.sources) > 1) or not all(
        alias.isidentifier() for alias in flow.sources if alias
    ):
        found.append((flow.where, "the aliases of its sources must be names of Python, for its first step"))
    queues = list(flow.sources.values())
    if len(set(queues)) < len(queues):
        found.append((flow.where, "it reads the same queue twice: read it once, and part it in a step"))
    for names, kind in (([s.name for s in flow.steps], "step"), ([e.name for e in flow.expectations], "expectation")):
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            found.append((flow.where, f"it has {kind} {', '.join(twice)} twice"))
    unconditional = [route.queue for route in flow.routes if route.when is None]
    for route in flow.routes:
        if route.queue in flow.sources.values():
            found.append((route.where, f"it writes to {route.queue}, which it reads: that never ends"))
        if unconditional.count(route.queue) > 1 or (route.when is not None and route.queue in unconditional):
            found.append((route.where, f"rows go to {route.queue} twice"))
    return [f"{where}: flow {flow.name}: {text}" for where, text in dict.fromkeys(found)]


def _cycles(flows: Sequence[Flow]) -> list[str]:
    after: Mapping[str, list[str]] = {
        flow.name: [
            other.name for other in flows if other is not flow and set(flow.outputs) & set(other.sources.values())
        ]
        for flow in flows
    }
    found: list[str] = []
    seen: set[frozenset[str]] = set()

    def walk(path: list[str]) -> None:
        for name in after[path[-1]]:
            if name in path:
                loop = path[path.index(name) :]
                if frozenset(loop) not in seen:
                    seen.add(frozenset(loop))
                    found.append(f"the flows go in a circle, and would never end: {' → '.join([*loop, name])}")
            else:
                walk([*path, name])

    for flow in flows:
        walk([flow.name])
    return found


def _refuse(problems: Sequence[str]) -> None:
    if problems:
        raise InvalidInput("\n".join(dict.fromkeys(problems)))
