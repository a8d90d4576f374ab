"""The flows of the tests that kill `penstock run`: a join with an expectation and two routes; and ten that compete."""

from pyspark.sql import DataFrame

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
