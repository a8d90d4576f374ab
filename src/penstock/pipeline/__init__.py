"""Flows: pipelines of queue → steps → queues that run on Spark, each epoch of them once.

    from penstock.pipeline import Flow

    clean = Flow("clean-orders", source="orders.raw", schema="id long, customer string, amount double")

    @clean.step
    def euros(df):
        return df.withColumn("amount", df.amount * 1.08)

    clean.expect("amount is positive", "amount > 0")
    clean.to("orders.clean", partition="customer")

`penstock run flows.py` runs them. The modules: `flow` declares a flow, `checking` checks it before anything starts,
`frames` builds its DataFrames, `queries` its queries, checkpoint and registration, `running` runs one query,
`supervisor` all of them, `poison` finds messages at which a step fails. `archiving` and
`backfilling` are jobs that run once. Spark is imported when something is run, and not before.
"""

from penstock.pipeline.archiving import ArchiveResult, archive
from penstock.pipeline.backfilling import BackfillResult, backfill
from penstock.pipeline.flow import DATA_SINK, DATA_SOURCE, TRANSFORM, Flow

__all__ = [
    "DATA_SINK",
    "DATA_SOURCE",
    "TRANSFORM",
    "ArchiveResult",
    "BackfillResult",
    "Flow",
    "archive",
    "backfill",
]
