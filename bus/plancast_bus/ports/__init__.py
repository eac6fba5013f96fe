"""Protocols that the JetStream and the memory adapter implement, and the stores that are built on them."""
