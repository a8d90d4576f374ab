"""`penstock bench latency`: from a push to a handler in another process, beside a bare LISTEN and NOTIFY."""
