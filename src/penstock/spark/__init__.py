"""Penstock as a source and a sink of Spark: `format("penstock")` for batches and streams, to read and to write.

    import penstock.spark

    spark = penstock.spark.session()            # or penstock.spark.register(your_session)
    orders = spark.read.format("penstock").option("subscribe", "orders").load()

To read further: `options` is what can be set, `schema` the columns, `source` where Spark comes in, `reading` and
`streaming` the two ways to read, `writing` the two ways to write. What is done for each of them is beside: `positions`,
`filters`, `planning`, `columns` for reading, `admission` and `progress` for streams, `packing` for writing.
"""

from penstock.spark.sessions import MINIMUM_SPARK, register, session

__all__ = ["MINIMUM_SPARK", "register", "session"]
