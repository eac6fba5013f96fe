"""The bus on NATS JetStream: streams, and the stores of checkpoints, dead letters and registrations."""

from plancast_bus.jetstream.client import websockets  # noqa: F401

# isort: split
from plancast_bus.jetstream.bus import JetStreamBus, connect

__all__ = ["JetStreamBus", "connect"]
