"""The statement of every operation, a module per room."""

from penstock.postgres.statements import archives, claiming, flows, groups, log, pushing, ranges, reading, staging

__all__ = ["archives", "claiming", "flows", "groups", "log", "pushing", "ranges", "reading", "staging"]
