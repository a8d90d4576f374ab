"""A driver of its own process: copies queue `in` to queue `out` as a stream, with a sink that may kill somebody.

Arguments: the address, a folder, the master, and the rest as name=value options of the stream and the sink.
"""

import os
import sys

import penstock.spark
from spark.faults import FaultySource

# For a driver that lives for seconds, compiling thoroughly is a waste.
QUIET = {"spark.ui.showConsoleProgress": "false"}


def main(url: str, folder: str, master: str, *rest: str) -> None:
    """Run the query until it has read what is there."""
    options = dict(word.split("=", 1) for word in rest)
    settings = {name: options.pop(name) for name in list(options) if name.startswith("spark.")}
    if options.get("kill") == "driver":
        options["victim"] = str(os.getpgid(0))
    limit = options.pop("limit", "30")
    if master.startswith("sc:"):
        from pyspark.sql import SparkSession

        session = SparkSession.builder.remote(master[3:]).getOrCreate()
        penstock.spark.register(session)
    else:
        session = penstock.spark.session("driver", master, {**QUIET, **settings})
    session.dataSource.register(FaultySource)
    stream = session.readStream.format("penstock").option("url", url).option("subscribe", "in")
    stream = stream.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", limit)
    stream = stream.option("minPartitions", "2").option("groupId", "g")
    sink = stream.load().writeStream.format("faulty" if "step" in options else "penstock")
    sink = sink.option("url", url).option("queue", "out").options(**options)
    sink = sink.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True)
    print("starting", flush=True)  # noqa: T201
    query = sink.start()
    query.awaitTermination()
    print("finished", flush=True)  # noqa: T201
    session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
