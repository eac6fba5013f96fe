"""How events and checkpoints travel and rest."""
