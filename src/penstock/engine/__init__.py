"""Typed Python over the SQL engine: clients, transactions, packing, migrations."""
