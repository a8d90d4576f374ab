"""Penstock as a source and a sink of Spark: `format("penstock")` for batches and streams, to read and to write.

    import penstock.spark

    spark = penstock.spark.session()            # or penstock.spark.register(your_session)
    orders = spark.read.format("penstock").option("subscribe", "orders").load()

The modules: `options` and `schema` (the columns) define the interface, `source` is what Spark calls, `reading` reads
batches, `streaming` reads streams, `writing` writes both. `positions`, `filters`, `planning`, `columns`, `parsing` and
`rejecting` serve reading, `admission` and `progress` streams, `packing` writing.
"""

from penstock.spark.sessions import MINIMUM_SPARK, register, session

__all__ = ["MINIMUM_SPARK", "register", "session"]
