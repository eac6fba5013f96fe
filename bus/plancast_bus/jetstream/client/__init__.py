"""The NATS connection, its protocol parser, and the JetStream API on top of it."""
