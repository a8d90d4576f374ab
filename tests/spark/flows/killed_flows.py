"""What the test runs that kills `penstock run`: a join with an expectation and two routes, and totals of windows."""

from pyspark.sql import DataFrame, functions

from penstock.pipeline import Flow

paid = Flow(
    "paid",
    sources={"o": "orders", "p": "payments"},
    schema={"o": "id long, customer string, amount double", "p": "order long, paid double"},
    max_messages=40,
)


@paid.step
def joined(o: DataFrame, p: DataFrame) -> DataFrame:
    """Each order meets its payment, in whichever epoch that comes."""
    return o.join(p, o.id == p.order)


paid.expect("paid in full", "paid >= amount")
paid.route("large", when="amount > 50", partition="customer")
paid.to("out", partition="customer")


totals = Flow("totals", source="out", schema="id long", max_messages=100)


@totals.step
def per_hundred(df: DataFrame) -> DataFrame:
    """Ids are taken for seconds; none is late, and the windows end when one comes that is far above all others."""
    return (
        df.withColumn("at", functions.timestamp_seconds("id"))
        .withWatermark("at", "1000 seconds")
        .groupBy(functions.window("at", "100 seconds").alias("window"))
        .count()
        .selectExpr("unix_timestamp(window.start) AS id", "count")
    )


totals.to("totals", partition="'all'")
