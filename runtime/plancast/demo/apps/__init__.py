"""The apps of `plancast demo`."""
