"""`penstock bench gateway`: requests to a gateway, beside a constant answer of the same server."""
