"""Databases for races between pushes: those of the groups' tests."""

from groups.conftest import connections, fresh, mutable_dsn, sql

__all__ = ["connections", "fresh", "mutable_dsn", "sql"]
