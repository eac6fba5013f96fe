"""Bridges to other systems."""
