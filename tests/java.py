"""Let every Spark of the tests begin quickly: in half the time with the classes that it loads in an archive of Java's.

`python tests/java.py` makes the archive, which `make test` does once. Without one, all works and takes longer.
"""

import os
import shlex
import sys
from pathlib import Path

import penstock.spark
from penstock.embedded.java import java_home, version
from penstock.embedded.spark import spark_home
from penstock.settings import resolve
from sessions import end_spark

CLASSES = Path(sys.prefix) / "spark.classes"
# What a Java is told to find them. Each pytest reads this instead of asking which Java there is.
OPTIONS = Path(sys.prefix) / "spark.options"
# For tests of seconds, compiling thoroughly is a waste.
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def begin_quickly() -> None:
    """Set this for every Spark that is started from here on, and for those of the commands that are run."""
    _tell(OPTIONS.read_text() if OPTIONS.exists() else "")


def record() -> None:
    """Run some of what tests run, and let Java archive the classes that it loaded for it."""
    reads, writes = "-XX:SharedArchiveFile", "-XX:ArchiveClassesAtExit"
    if version(java_home(resolve().home)) >= 25:
        reads, writes = "-XX:AOTCache", "-XX:AOTCacheOutput"
    CLASSES.unlink(missing_ok=True)
    _tell(f"{writes}={CLASSES} -Xlog:disable")
    spark = penstock.spark.session("classes", settings={"spark.ui.showConsoleProgress": "false"})
    spark.range(10).selectExpr("CAST(id AS STRING) AS key", "id % 3 AS n").groupBy("n").count().collect()
    stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", "1").load()
    query = stream.writeStream.format("noop").start()
    query.awaitTermination(2)
    query.stop()
    # Java writes the archive when it ends.
    end_spark()
    if CLASSES.exists():
        OPTIONS.write_text(f"{reads}={CLASSES} -Xlog:disable")


def _tell(more: str) -> None:
    # The same for all, wherever their PENSTOCK_HOME is: an archive holds for one class path.
    if home := spark_home(Path(sys.prefix)):
        os.environ["SPARK_HOME"] = str(home)
    java = shlex.quote(f"{QUICK} {more}".strip())
    os.environ["PYSPARK_SUBMIT_ARGS"] = (
        f"--driver-java-options {java} --conf spark.executor.extraJavaOptions={java} pyspark-shell"
    )
    # Not to be found: a folder with files in it is no class path that Java takes for an archive.
    os.environ["SPARK_CONF_DIR"] = str(Path(__file__).parent / "no-settings")


if __name__ == "__main__":
    record()
