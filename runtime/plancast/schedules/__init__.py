"""Schedules: definitions, the times at which they fire, and their state. No I/O."""
