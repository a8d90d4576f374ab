"""The warm tier: the next messages of groups in Valkey, kept there by dispatchers, taken and settled by workers."""
