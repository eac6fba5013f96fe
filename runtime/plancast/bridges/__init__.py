"""Bridges to systems that are there already."""
