"""Samples the product's own processes; see :mod:`benchmarks.profile`."""
