"""Where turns happen: Ray."""
