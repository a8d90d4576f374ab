"""The operations of a broker, one module per room. What runs them is a transport: see `broker.transport`."""
