"""Protocols of the bus and its stores, which the JetStream and the memory adapter implement."""
