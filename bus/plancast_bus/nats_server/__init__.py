"""The embedded nats-server and a first probe of any server."""
