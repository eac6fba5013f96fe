"""Start, upgrade, drain and health of a deployment."""
