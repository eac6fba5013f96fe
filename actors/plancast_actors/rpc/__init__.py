"""Framed msgpack calls over TCP, cancellable and pipelined."""
