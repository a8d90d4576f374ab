"""The gateway: penstock over HTTP, for every language. Its routes are in `table.py`."""
