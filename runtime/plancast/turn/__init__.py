"""One event, one plan: the turn, from classification to staged effects."""
