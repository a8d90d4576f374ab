"""Orders come in raw; clean ones go on, large ones to a queue of their own, and every minute has its total."""

from pyspark.sql import functions

from penstock.pipeline import Flow

clean = Flow("clean-orders", source="orders.raw", schema="id long, customer string, amount double, at timestamp")


@clean.step
def euros(df):
    """Amounts come in dollars."""
    return df.withColumn("amount", functions.round(df.amount * 1.08, 2))


clean.expect("amount is positive", "amount > 0")
clean.expect("customer is known", "customer IS NOT NULL")
clean.route("orders.large", when="amount > 1000", partition="customer")
clean.to("orders.clean", partition="customer")


totals = Flow("minute-totals", source="orders.clean", schema="id long, amount double, at timestamp")


@totals.step
def per_minute(df):
    """A minute is complete when orders have come that are a minute younger."""
    return (
        df.withWatermark("at", "1 minute")
        .groupBy(functions.window("at", "1 minute").alias("minute"))
        .agg(functions.count("*").alias("orders"), functions.round(functions.sum("amount"), 2).alias("amount"))
        .select("minute.start", "orders", "amount")
    )


totals.to("orders.per-minute", partition="'all'")
