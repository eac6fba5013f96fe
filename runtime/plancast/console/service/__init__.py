"""What routes share: access, bounds, errors, the plan index."""
