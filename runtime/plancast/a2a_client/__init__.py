"""Remote agents that speak A2A: how goals are delegated to them, and followed to their end."""
