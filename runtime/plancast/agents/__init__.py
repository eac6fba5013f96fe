"""Event and agent definitions, and the registry of what is live."""
