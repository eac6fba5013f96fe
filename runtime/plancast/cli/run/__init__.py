"""Foreground commands: run, worker, console, bridge, demo."""
