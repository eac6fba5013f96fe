"""Runs turns on Ray."""
