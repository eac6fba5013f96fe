"""Checkpoints, dead letters, the registry and the other tables, stored in JetStream streams."""
