"""Re-running a plan's history and comparing the result."""
