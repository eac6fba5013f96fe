"""Clients: submit goals, follow and steer plans."""
