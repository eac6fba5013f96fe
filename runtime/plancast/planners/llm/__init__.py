"""ChoreographyPlanner: prompts, and validation of a model's decisions."""
