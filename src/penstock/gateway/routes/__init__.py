"""What the routes do, one module per room. Which handler answers which path is said in `gateway.table` alone."""
