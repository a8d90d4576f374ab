"""Actions, run by real worker processes."""
