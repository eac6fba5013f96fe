"""Terminal output: tables, progress, log lines."""
