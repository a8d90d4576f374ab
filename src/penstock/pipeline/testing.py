"""For tests of flows: run the steps on a few rows, or all of a flow on a real penstock.

def test_negative_amounts_are_dead(penstock_spark):
    made = run_steps(clean, [{"id": 1, "customer": "ada", "amount": -2.0}], penstock_spark)
    assert made.dead == [Dead("clean-orders: amount is positive", {"id": 1, "customer": "ada", "amount": -2.0})]
"""

import atexit
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

import msgspec

from penstock.errors import PenstockError
from penstock.pipeline import checking, frames
from penstock.pipeline.flow import Flow
from penstock.settings import resolve

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.client.client import Client

Rows = Sequence[Mapping[str, Any] | bytes | str | None]


class Dead(NamedTuple):
    """A message that became a dead letter: the reason, and its value."""

    reason: str
    value: Any


@dataclass
class Made:
    """What a flow made: the values that went to each queue, and the dead letters."""

    queues: dict[str, list[Any]] = field(default_factory=dict)
    dead: list[Dead] = field(default_factory=list)

    def __getitem__(self, queue: str) -> list[Any]:
        return self.queues.get(queue, [])


def run_steps(flow: Flow, rows: Rows | Mapping[str, Rows], spark: "SparkSession") -> Made:
    """Run the steps, expectations and routes of a flow on a few values, without a penstock and as a batch.

    A value is a mapping, which becomes JSON, or the bytes of a message, or None. Of several sources, give the rows by
    alias.
    """
    checking.prepare([flow])
    spark.conf.set("spark.sql.ansi.enabled", "false")
    given: Mapping[str, Rows] = rows if isinstance(rows, Mapping) else dict.fromkeys(flow.sources or [""], rows)
    made = Made()
    sources = {alias: _frame(flow, alias, list(given[alias]), spark, made) for alias in flow.sources or [""]}
    written = frames.sink_rows(flow, frames.transform(flow, sources), {}).collect()
    queues: defaultdict[str, list[Any]] = defaultdict(list)
    for row in written:
        if row.queue is not None:
            queues[row.queue].append(_decoded(None if row.value is None else bytes(row.value)))
        else:
            alias = next(alias for alias, queue in flow.sources.items() if queue == row.dead_queue)
            made.dead.append(Dead(row.dead_reason, _plain(list(given[alias])[row.dead_offset])))
    made.queues = dict(queues)
    return made


def run_flow(flow: Flow, rows: Rows | Mapping[str, Rows], client: "Client", spark: "SparkSession") -> Made:
    """Push values to the sources of a flow, run it on a penstock until it has read them, and return what it made.

    Run again, it goes on where it stood, with its state; what it returns is all that its queues hold by then.
    """
    from penstock.pipeline.supervisor import Supervisor

    given: Mapping[str, Rows] = rows if isinstance(rows, Mapping) else dict.fromkeys(flow.sources, rows)
    for alias, queue in flow.sources.items():
        client.push(queue, [_encoded(row) for row in given[alias]], partition="test")
    said: list[str] = []
    settings = resolve({"url": client.dsn, "home": _home()})
    if not Supervisor([flow], settings, once=True, echo=said.append).run(spark):
        raise PenstockError("\n".join(said))
    known = {info.name for info in client.queues()}
    made = Made()
    for queue in flow.outputs:
        if queue in known:
            made.queues[queue] = [
                _decoded(message.value)
                for partition in client.partitions(queue)
                for message in client.scan(queue, partition.name)
            ]
    for queue in flow.sources.values():
        made.dead += [Dead(letter.reason, _decoded(letter.value)) for letter in client.dead_letters(queue, flow.name)]
    return made


@cache
def _home() -> str:
    """Return where the checkpoints of this process's tests lie, until it ends."""
    folder = tempfile.mkdtemp(prefix="penstock-flow-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _frame(flow: Flow, alias: str, rows: list[Any], spark: "SparkSession", made: Made) -> "DataFrame":
    if flow.files is not None:
        return spark.createDataFrame(rows, flow.schemas[""])
    import pyarrow as pa

    from penstock.spark.columns import ARROW
    from penstock.spark.parsing import Parser
    from penstock.spark.schema import value_columns

    count = len(rows)
    nothing = pa.nulls(count, pa.string())
    columns = {
        "queue": pa.array([flow.sources[alias]] * count, pa.string()),
        "partition": pa.array(["test"] * count, pa.string()),
        "offset": pa.array(range(count), pa.int64()),
        "key": nothing,
        "value": pa.array([_encoded(row) for row in rows], pa.binary()),
        "headers": nothing,
        "timestamp": pa.array([datetime.now(UTC)] * count, pa.timestamp("us", tz="UTC")),
        "id": pa.array([str(uuid4()) for _ in rows], pa.string()),
    }
    batch = pa.record_batch([columns[name] for name in ARROW.names], schema=ARROW)
    schema = frames.value_schema(spark, flow, alias)
    message = flow.message_column(alias)
    if schema is None:
        from pyspark.sql import functions as F  # noqa: N812

        raw = spark.createDataFrame(pa.Table.from_batches([batch]))
        fields = ("queue", "partition", "offset", "key", "headers", "timestamp", "id")
        return raw.withColumn(message, F.struct(*fields, *(("value",) if flow.carries_values else ())))
    parsed, misfits = Parser(schema.jsonValue(), message, with_value=flow.carries_values).parse(batch)
    for row, _ in misfits:
        made.dead.append(Dead(f"{flow.name}: malformed", _plain(rows[row])))
    return spark.createDataFrame(
        pa.Table.from_batches([parsed]), value_columns(schema.json(), message, with_value=flow.carries_values)
    )


def _encoded(row: Mapping[str, Any] | bytes | str | None) -> bytes | None:
    match row:
        case bytes() | None:
            return row
        case str():
            return row.encode()
        case _:
            return msgspec.json.encode(dict(row))


def _decoded(value: bytes | None) -> Any:
    try:
        return None if value is None else msgspec.json.decode(value)
    except msgspec.MsgspecError:
        return value


def _plain(row: Mapping[str, Any] | bytes | str | None) -> Any:
    return _decoded(_encoded(row))
