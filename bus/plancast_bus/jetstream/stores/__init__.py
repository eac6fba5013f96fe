"""Checkpoints, dead letters, the registry and the other tables, kept in JetStream streams."""
