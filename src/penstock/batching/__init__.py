"""The micro-batcher: concurrent operations become one."""
