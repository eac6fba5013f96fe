"""Benchmarks: how fast plans run, beside the floor that JetStream itself sets. See README.md."""
