"""Benchmarks of plans, beside the baseline that JetStream itself sets. See README.md."""
