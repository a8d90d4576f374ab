"""The words of the system, without any I/O: messages, ids, how values are packed."""
