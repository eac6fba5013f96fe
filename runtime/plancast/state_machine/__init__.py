"""State machines: states, conditions, interpolation, compilation."""
