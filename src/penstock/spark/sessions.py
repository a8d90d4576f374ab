"""Spark sessions with penstock: `register` adds it to a session, `session` makes one."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import MissingExtra, SetupError
from penstock.settings import resolve

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MINIMUM_SPARK = (4, 2)
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
# The processes that run Python functions are started by a daemon that lets them report any exception.
DAEMON_SETTING, DAEMON_MODULE = "spark.python.daemon.module", "penstock.spark.daemon"

# What a small machine is better off with; whoever gives another value gets that.
_DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.streaming.numRecentProgressUpdates": "10",
    DAEMON_SETTING: DAEMON_MODULE,
}


def register(spark: "SparkSession", *, push_filters: bool = False) -> None:
    """Make `format("penstock")` available in a session, Spark Connect's included.

    With `push_filters`, filters on queue, partition, offset and timestamp become ranges that are read, and Spark's
    setting `spark.sql.python.filterPushdown.enabled` is turned on. Then call `load()` anew for every query: Spark (4.2
    and 4.3) keeps the ranges of a DataFrame's last filter, and reads them again for a query of the same DataFrame that
    has no filter or another one.
    """
    check_version(spark.version)
    _ensure_python(spark)
    from penstock.spark.source import PenstockSource, PlainSource

    if push_filters:
        spark.conf.set(PUSHDOWN, "true")
    source = PenstockSource if push_filters else PlainSource
    # A class that nobody can import travels with what it has.
    spark.dataSource.register(type(source.__name__, (source,), {"most_tasks": _most_tasks(spark)}))


def session(
    name: str = "penstock",
    master: str | None = None,
    settings: Mapping[str, str] | None = None,
    *,
    push_filters: bool = False,
) -> "SparkSession":
    """Return a local session that knows penstock, with Java from a wheel where the machine has none."""
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise MissingExtra("spark", "The Spark connector") from None
    cores = os.cpu_count() or 1
    builder = SparkSession.builder.appName(name)
    chosen = {
        **_DEFAULTS,
        "spark.sql.shuffle.partitions": str(cores),
        "spark.master": master or f"local[{cores}]",
        **(settings or {}),
    }
    for key, value in chosen.items():
        builder = builder.config(key, value)
    with prepared(chosen["spark.master"]):
        spark = builder.getOrCreate()
    register(spark, push_filters=push_filters)
    return spark


def _ensure_python(spark: "SparkSession") -> None:
    """Make Spark's processes use a Python that has penstock.

    Unless PYSPARK_PYTHON says otherwise, Spark starts the first `python3` on PATH, which in a virtualenv that was not
    activated is another one than that which runs this.
    """
    from pyspark.errors import PySparkException

    try:
        context = spark.sparkContext
    except PySparkException:
        # Connect's server has a Python of its own, of which nobody here knows.
        return
    chosen = str(context.pythonExec)
    if _has_penstock(chosen):
        return
    if "PYSPARK_PYTHON" not in os.environ and str(context.master).startswith("local"):
        # What is registered from now on is run by it.
        context.pythonExec = sys.executable
        return
    raise SetupError(
        f"Spark runs Python as {chosen}, which has no penstock, or is not there. Before the session starts, set the "
        f"variable PYSPARK_PYTHON to a Python that has penstock on every node; here that is {sys.executable}"
    )


def _has_penstock(python: str) -> bool:
    found = shutil.which(python)
    if found is None:
        return False
    # Not the files behind: the links of a virtualenv lead to a Python that has none of its packages.
    if Path(found).absolute() == Path(sys.executable).absolute():
        return True
    try:
        finished = subprocess.run([found, "-c", "import penstock.spark"], capture_output=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return finished.returncode == 0


def _most_tasks(spark: "SparkSession") -> int:
    """Return the number of tasks to read with: three for each core, so that a slow one delays little."""
    from pyspark.errors import PySparkException

    from penstock.spark.options import MOST_TASKS

    try:
        context = spark.sparkContext
    except PySparkException:
        # Connect does not say what its server has.
        return MOST_TASKS
    tasks = 3 * context.defaultParallelism
    # Elsewhere the cores that are there by now may be few of those to come.
    return tasks if str(context.master).startswith("local[") else max(tasks, MOST_TASKS)


@contextmanager
def prepared(master: str) -> Iterator[None]:
    """Set what a Spark that starts needs in the environment: a Java, the Python that runs this, and a quick home."""
    # Here, because each process of Spark's passes through this file, and only the one that starts a session needs it.
    from penstock.embedded.java import java_home
    from penstock.embedded.spark import spark_home

    folder = resolve().home
    os.environ["JAVA_HOME"] = str(java_home(folder))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # Some clusters send the zips of Spark's home to their nodes.
    home = spark_home(folder) if master.startswith("local") and "SPARK_HOME" not in os.environ else None
    if home is None:
        yield
        return
    os.environ["SPARK_HOME"] = str(home)
    try:
        yield
    finally:
        # Spark has it by now; another one that a program of ours starts has its own.
        del os.environ["SPARK_HOME"]


def check_version(version: str) -> None:
    """Raise an error if Spark is too old."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers is None or (int(numbers[1]), int(numbers[2])) < MINIMUM_SPARK:
        wanted = ".".join(map(str, MINIMUM_SPARK))
        raise SetupError(
            f"this is Spark {version}, and penstock needs {wanted} or later, where Python sources have admission "
            f"control: pip install 'pyspark>={wanted}'"
        )
