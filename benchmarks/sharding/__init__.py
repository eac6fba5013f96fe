"""Computes a capacity plan from measured figures, and simulates balance and failover; see docs/scale.md."""
