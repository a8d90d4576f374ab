"""Read a queue with Spark, compute, and write to another queue: each batch exactly once."""

import tempfile

from pyspark.sql import functions as f

import penstock.spark
from penstock import Client

with Client() as client:
    client.push_many("payments", [(f"shop-{n % 3}", {"customer": f"c{n % 5}", "cents": n}) for n in range(1000)])

    spark = penstock.spark.session("totals")
    payments = spark.readStream.format("penstock").option("subscribe", "payments").option("startingOffsets", "earliest")
    payments = payments.option("groupId", "totals").load()
    payment = f.from_json(payments["value"].cast("string"), "customer STRING, cents BIGINT")
    large = payments.select("partition", payment.alias("payment")).where("payment.cents >= 900")
    rows = large.select("partition", f.col("payment.customer").alias("key"), f.to_json("payment").alias("value"))

    query = rows.writeStream.format("penstock").option("queue", "large").trigger(availableNow=True)
    query.option("checkpointLocation", tempfile.mkdtemp()).start().awaitTermination()

    print(sum(partition.messages for partition in client.partitions("large")), "large payments")
    print("lag of the query:", client.lag("payments", "totals"))
