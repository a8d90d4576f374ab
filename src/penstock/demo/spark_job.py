"""The Spark job of the demo: a process that copies large payments from one queue to another and ends."""

import sys

import penstock.spark


def main(source: str, target: str, checkpoint: str) -> None:
    """Read, transform and write what there is, once for each line on stdin.

    The first line is the address: arguments are for everyone to see.
    """
    url = sys.stdin.readline().strip()
    spark = penstock.spark.session("penstock demo")
    reader = spark.readStream.format("penstock").option("url", url).option("subscribe", source)
    payments = reader.option("startingOffsets", "earliest").option("groupId", "spark").load()
    parsed = payments.selectExpr("partition", "value", "from_json(CAST(value AS STRING), 'cents INT') AS payment")
    large = parsed.where("payment.cents >= 900").select("partition", "value")
    sink = large.writeStream.format("penstock").option("url", url).option("queue", target)
    sink = sink.option("checkpointLocation", checkpoint).trigger(availableNow=True)
    for _ in sys.stdin:
        sink.start().awaitTermination()
        print("done", flush=True)  # noqa: T201
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
