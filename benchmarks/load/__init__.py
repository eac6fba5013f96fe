"""Load, and what became of it: submission of goals, plans in flight, outcomes."""
