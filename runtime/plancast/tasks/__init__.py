"""Tasks and task groups that a plan has started."""
