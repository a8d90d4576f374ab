"""The transport over HTTP: how operations are written, and a client of the gateway that sends them."""
