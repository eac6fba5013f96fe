"""The effects of a plan: what its tasks have done outside, what a rollback has to undo, and in which order."""
