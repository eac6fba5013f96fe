"""Measurements by name: the workloads W1 to W7, and those of idle, import, scale-out and latency."""
