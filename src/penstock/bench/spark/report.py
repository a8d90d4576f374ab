"""One run of `penstock bench spark`: contenders take turns on one Spark and one database, and only ratios count."""

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import psycopg
from psycopg.conninfo import conninfo_to_dict

import penstock.spark
from penstock import Client
from penstock.bench import environment
from penstock.bench.databases import own_database
from penstock.bench.environment import Environment
from penstock.errors import NotFound

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SIZE = 100
DRIVER = "org.postgresql:postgresql:42.7.4"
_SOURCES = {"penstock": "penstock", "limit": "synthetic"}


class Plan(NamedTuple):
    """How much is measured, and how much before that nobody looks at: Java compiles what it runs often."""

    messages: int
    rounds: int
    epochs: int
    many: int
    unseen_rounds: int = 1
    unseen_epochs: int = 5


FULL = Plan(2_000_000, 9, 10, 10_000)
QUICK = Plan(20_000, 1, 3, 100, 0, 0)


class Report(msgspec.Struct, frozen=True):
    """Seconds of each contender in each case, round by round; for epochs, milliseconds of each."""

    environment: Environment
    spark: str
    messages: int
    samples: dict[str, dict[str, list[float]]]

    def ratio(self, case: str, over: str, below: str) -> float:
        """Return how many times as fast one is as another: the median of the rounds' ratios."""
        times = self.samples[case]
        return statistics.median(b / a for a, b in zip(times[over], times[below], strict=True))


class Verdict(NamedTuple):
    """A promise and what came of it."""

    promise: str
    measured: float
    kept: bool


def verdicts(report: Report) -> Iterator[Verdict]:
    """Judge a report by what penstock promises."""
    for case, times in (("read", 2.0), ("write", 3.0)):
        limit = report.ratio(case, "penstock", "limit")
        yield Verdict(f"{case} ≥ 0.75 of the limit", limit, limit >= 0.75)
        if "jdbc" in report.samples[case]:
            rows = report.ratio(case, "penstock", "jdbc")
            yield Verdict(f"{case} ≥ {times:g} × JDBC", rows, rows >= times)
    for case, what in (("empty epoch", "an empty epoch"), ("epoch", "an epoch of one message")):
        epochs = report.samples[case]
        slower = statistics.median(epochs["penstock"]) / statistics.median(epochs["limit"])
        yield Verdict(f"{what} ≤ 1.2 × that of a synthetic source", slower, slower <= 1.2)
    for case in ("read", "write"):
        slower = 1 / report.ratio(f"{case} many partitions", "many", "ten")
        yield Verdict(f"{case} of many partitions ≤ 1.5 × that of 10", slower, slower <= 1.5)


def lines(report: Report) -> Iterator[str]:
    """The report as text."""
    yield from report.environment.lines
    yield f"Spark {report.spark}, {report.messages:,} messages of {SIZE} B"
    yield ""
    for case, contenders in report.samples.items():
        for name, times in contenders.items():
            if "epoch" in case:
                yield f"{case:<24}{name:<12}{statistics.median(times):10.0f} ms"
                continue
            middle = statistics.median(times)
            low, high = min(times), max(times)
            rate = report.messages / middle / 1000
            yield f"{case:<24}{name:<12}{middle:10.2f} s  ({low:.2f} … {high:.2f}) {rate:10,.0f} k messages/s"
    yield ""
    yield f"write, the floor (values only, a blob a batch): {report.ratio('write', 'floor', 'limit'):.2f} of the limit"
    yield f"write, penstock: {report.ratio('write', 'penstock', 'floor'):.2f} of the floor"
    shuffled, new = (1 / report.ratio("write many partitions", name, "ten") for name in ("shuffled", "new"))
    yield f"write of many partitions, repartitioned before: {shuffled:.2f} × that of 10"
    yield f"write of many partitions that are made by it: {new:.2f} × that of 10"
    if "jdbc" in report.samples["write"]:
        for name in ("limit", "floor"):
            yield f"write, the {name}: {report.ratio('write', name, 'jdbc'):.2f} × JDBC"
        keyed = report.ratio("write", "penstock", "jdbc keyed")
        yield f"write, penstock: {keyed:.2f} × JDBC to a table with a key"
    yield ""
    for verdict in verdicts(report):
        yield f"{'kept  ' if verdict.kept else 'MISSED'}  {verdict.promise}: {verdict.measured:.2f}"


def save(report: Report, folder: Path) -> None:
    """Store a report."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "spark.json").write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")
    (folder / "spark.md").write_text("\n".join(["# penstock bench spark", "", "```", *lines(report), "```", ""]))


def run(url: str, plan: Plan, jdbc: Path | bool, say: Callable[[str], None]) -> Report:
    """Measure everything; JDBC with a driver that is there, or one that Spark fetches, or not at all."""
    settings = {"spark.ui.showConsoleProgress": "false", "spark.driver.memory": "2g"}
    if jdbc:
        settings |= {"spark.jars.packages": DRIVER} if jdbc is True else {"spark.jars": str(jdbc)}
    spark = penstock.spark.session("penstock bench", settings=settings)
    spark.sparkContext.setLogLevel("ERROR")
    try:
        with own_database(url) as own, Client(own) as client, psycopg.connect(own, autocommit=True) as connection:
            facts = environment.look(connection)
            return Report(
                facts, spark.version, plan.messages, _Bench(spark, client, connection, plan, say).measure(bool(jdbc))
            )
    finally:
        spark.stop()


class _Bench:
    def __init__(
        self,
        spark: "SparkSession",
        client: Client,
        connection: psycopg.Connection[Any],
        plan: Plan,
        say: Callable[[str], None],
    ) -> None:
        from penstock.bench.spark.synthetic import Synthetic

        self.spark, self.client, self.connection, self.plan, self.say = spark, client, connection, plan, say
        spark.dataSource.register(Synthetic)

    def measure(self, jdbc: bool) -> dict[str, dict[str, list[float]]]:
        self.say("filling")
        self._fill("ten", 10)
        self._fill("many", self.plan.many)
        self.connection.execute(
            "CREATE TABLE messages (id bigint PRIMARY KEY, queue text NOT NULL, partition text NOT NULL,"
            " key text, value bytea NOT NULL, headers text, created_at timestamptz NOT NULL)"
        )
        self.connection.execute(
            "INSERT INTO messages SELECT n, 'bench', 'p0', NULL, repeat(chr((65 + n %% 26)::integer), %s)::bytea, NULL,"
            " now() FROM generate_series(0, %s::bigint - 1) n",
            (SIZE, self.plan.messages),
        )
        self.connection.execute("VACUUM ANALYZE")
        # As many for everybody as the source makes of it here.
        tasks = self._penstock("ten").rdd.getNumPartitions()
        rows = self._synthetic(tasks).select("value").cache()
        rows.count()
        ten, many = (
            rows.selectExpr(
                "value", f"concat('p', {self.plan.many} + monotonically_increasing_id() % {partitions}) AS partition"
            )
            for partitions in (10, self.plan.many)
        )
        cases: dict[str, dict[str, Callable[[], None]]] = {
            "read": {
                "penstock": lambda: _drain(self._penstock("ten")),
                "jdbc": lambda: _drain(self._jdbc(tasks)),
                "limit": lambda: _drain(self._synthetic(tasks)),
            },
            "write": {
                "penstock": lambda: self._write(rows.selectExpr("value", "'p0' AS partition")),
                "jdbc": lambda: self._write_jdbc(rows, "written"),
                "jdbc keyed": lambda: self._write_jdbc(rows, "written_keyed"),
                "floor": lambda: self._write_blobs(rows),
                "limit": lambda: (
                    rows.selectExpr("value", "'p0' AS partition").write.format("synthetic").mode("append").save()
                ),
            },
            "read many partitions": {
                "ten": lambda: _drain(self._penstock("ten")),
                "many": lambda: _drain(self._penstock("many")),
            },
            "write many partitions": {
                "ten": lambda: self._write(ten, "out of ten"),
                "many": lambda: self._write(many, "out of many"),
                "shuffled": lambda: self._write(many.repartition(tasks, "partition"), "out of many"),
                "new": lambda: self._write(many),
            },
        }
        if not jdbc:
            cases = {
                case: {name: work for name, work in contenders.items() if "jdbc" not in name}
                for case, contenders in cases.items()
            }
        samples: dict[str, dict[str, list[float]]] = {
            case: {name: [] for name in contenders} for case, contenders in cases.items()
        }
        self._clean_up()
        for turn in range(1 - self.plan.unseen_rounds, self.plan.rounds + 1):
            for case, contenders in cases.items():
                self.say(f"round {turn} of {self.plan.rounds}: {case}")
                names = list(contenders)
                for name in names[turn % len(names) :] + names[: turn % len(names)]:
                    began = time.perf_counter()
                    contenders[name]()
                    if turn > 0:
                        samples[case][name].append(time.perf_counter() - began)
                    self._clean_up()
        for case, empty in (("empty epoch", True), ("epoch", False)):
            samples[case] = {name: [] for name in _SOURCES}
            # In turns: Java gets faster all the while, whoever comes first.
            for turn in range(self.plan.rounds):
                self.say(f"{case}s, round {turn + 1} of {self.plan.rounds}")
                for name, source in _SOURCES.items():
                    samples[case][name] += self._epochs(source, empty=empty)
        return samples

    def _fill(self, queue: str, partitions: int) -> None:
        """Push messages; each partition's as one batch, so that a segment is as full as it can be."""
        each = self.plan.messages // partitions
        values = [bytes([65 + number % 26]) * SIZE for number in range(each)]
        step = max(1, 20_000 // each)
        for low in range(0, partitions, step):
            names = range(low, min(low + step, partitions))
            for start in range(0, each, 100_000):
                part = values[start : start + 100_000]
                # Names of one length: what is compared with each other has the same bytes.
                self.client.push_many(queue, [(f"p{self.plan.many + name}", value) for name in names for value in part])

    def _penstock(self, queue: str) -> "DataFrame":
        return self.spark.read.format("penstock").option("url", self.client.dsn).option("subscribe", queue).load()

    def _synthetic(self, tasks: int) -> "DataFrame":
        options = {"rows": str(self.plan.messages), "tasks": str(tasks), "size": str(SIZE)}
        return self.spark.read.format("synthetic").options(**options).load()

    def _jdbc_options(self) -> dict[str, str]:
        known = conninfo_to_dict(self.client.dsn)
        address = f"jdbc:postgresql://{known['host']}:{known.get('port', 5432)}/{known['dbname']}"
        return {
            "url": f"{address}?reWriteBatchedInserts=true",
            "user": str(known["user"]),
            "password": str(known.get("password", "")),
            "driver": "org.postgresql.Driver",
        }

    def _jdbc(self, tasks: int) -> "DataFrame":
        bounds = {
            "dbtable": "messages",
            "partitionColumn": "id",
            "lowerBound": "0",
            "upperBound": str(self.plan.messages),
            "numPartitions": str(tasks),
            "fetchsize": "10000",
        }
        return self.spark.read.format("jdbc").options(**self._jdbc_options(), **bounds).load()

    def _write(self, frame: "DataFrame", queue: str = "out") -> None:
        frame.write.format("penstock").option("url", self.client.dsn).option("queue", queue).mode("append").save()

    def _write_jdbc(self, frame: "DataFrame", table: str) -> None:
        rows = frame.selectExpr("'p0' AS partition", "value")
        options = {"dbtable": table, "batchsize": "10000"}
        rows.write.format("jdbc").options(**self._jdbc_options(), **options).mode("append").save()

    def _write_blobs(self, frame: "DataFrame") -> None:
        rows = frame.selectExpr("value", "'p0' AS partition")
        rows.write.format("synthetic").option("url", self.client.dsn).mode("append").save()

    def _clean_up(self) -> None:
        with suppress(NotFound):
            self.client.delete("out")
        # Their partitions stay, as they do for whoever writes to a queue day by day.
        for queue in ("out of ten", "out of many"):
            with suppress(NotFound):
                self.client.purge(queue)
        # Spark makes the plain one: no key, no order. What is read by ranges, as `messages` is, needs one.
        self.connection.execute("DROP TABLE IF EXISTS written, written_keyed, blobs")
        self.connection.execute(
            "CREATE TABLE written_keyed (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, queue text NOT NULL"
            " DEFAULT 'out', partition text NOT NULL, key text, value bytea NOT NULL, headers text, created_at"
            " timestamptz NOT NULL DEFAULT clock_timestamp())"
        )
        self.connection.execute("CREATE TABLE blobs (body bytea)")
        self.connection.execute("ALTER TABLE blobs ALTER COLUMN body SET STORAGE EXTERNAL")
        # Whoever comes next does not pay for what is left over.
        self.connection.execute("VACUUM")
        with suppress(psycopg.errors.InsufficientPrivilege):
            self.connection.execute("CHECKPOINT")

    def _epochs(self, source: str, *, empty: bool) -> list[float]:
        """Return how many milliseconds each epoch of a stream of single messages takes.

        Spark runs no epoch for a source that has nothing. So an empty one has its row from a second, synthetic source:
        what is measured is asking the first, and an epoch without a task for it.
        """
        self.client.push("ticks", b"x" * SIZE, partition="p")
        stream = self.spark.readStream.format(source)
        if source == "penstock":
            stream = (
                stream.option("url", self.client.dsn).option("subscribe", "ticks").option("maxOffsetsPerTrigger", "1")
            )
            stream = stream.option("startingOffsets", "latest")
        elif empty:
            stream = stream.option("quiet", "true")
        frame = stream.load()
        if empty:
            frame = frame.unionByName(self.spark.readStream.format("synthetic").load())
        wanted = self.plan.unseen_epochs + self.plan.epochs
        with tempfile.TemporaryDirectory() as checkpoint:
            sink = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
            query = sink.trigger(processingTime="0 seconds").start()
            times: dict[int, float] = {}
            while len(times) < wanted and query.isActive:
                if source == "penstock" and not empty:
                    self.client.push("ticks", b"x" * SIZE, partition="p")
                for progress in query.recentProgress:
                    if progress["numInputRows"]:
                        times[progress["batchId"]] = progress["durationMs"]["triggerExecution"]
                time.sleep(0.01)
            query.stop()
        return [times[number] for number in sorted(times)][self.plan.unseen_epochs :]


def _drain(frame: "DataFrame") -> None:
    frame.write.format("noop").mode("overwrite").save()
