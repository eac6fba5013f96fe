"""Rows of runs: rounds, storage, targets, tables and charts."""
