"""Backups of a deployment's streams, and their restoration."""
