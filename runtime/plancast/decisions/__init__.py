"""What a planner can decide, and how a decision is carried out."""
