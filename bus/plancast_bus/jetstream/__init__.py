"""The bus on NATS JetStream: streams, checkpoints and everything else that a deployment keeps."""

from plancast_bus.jetstream.bus import JetStreamBus, connect

__all__ = ["JetStreamBus", "connect"]
