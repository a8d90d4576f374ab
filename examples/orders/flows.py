"""Orders come in raw; clean ones go on, large ones to a queue of their own, and every minute has its total."""

from pyspark.sql import functions as F

from penstock.pipeline import Flow

clean = Flow("clean-orders", source="orders.raw", schema="id long, customer string, amount double, at timestamp")


@clean.step
def euros(df):
    """Amounts come in dollars."""
    return df.withColumn("amount", F.round(df.amount * 1.08, 2))


clean.expect("amount is positive", "amount > 0")
clean.expect("customer is known", "customer IS NOT NULL")
clean.route("orders.large", when="amount > 1000", partition="customer")
clean.to("orders.clean", partition="customer")


totals = Flow(
    "minute-totals", source="orders.clean", schema="id long, customer string, amount double, at timestamp", mode="append"
)


@totals.step
def per_minute(df):
    """A minute is complete when orders have come that are a minute younger."""
    return (
        df.withWatermark("at", "1 minute")
        .groupBy(F.window("at", "1 minute").alias("minute"))
        .agg(F.count("*").alias("orders"), F.round(F.sum("amount"), 2).alias("amount"))
        .select("minute.start", "orders", "amount")
    )


totals.to("orders.per-minute", partition="'all'")
