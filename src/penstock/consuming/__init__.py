"""Consuming: handlers, waiting, leases, workers."""
