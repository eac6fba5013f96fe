"""Heartbeats, registration with a time to live, and the watchdog."""
