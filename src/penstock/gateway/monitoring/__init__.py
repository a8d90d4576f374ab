"""What a gateway tells of itself, the queues and the server: figures, metrics, events, logs."""
