"""Commands that run in the foreground: run, worker, console, bridge, demo."""
