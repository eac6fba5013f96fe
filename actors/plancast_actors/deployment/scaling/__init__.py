"""Changes the numbers of a deployment's actors, as asked or by their backlog."""
