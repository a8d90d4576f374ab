"""`penstock bench spark`: the source and the sink beside Spark's JDBC and beside the limit of Spark's own API."""
