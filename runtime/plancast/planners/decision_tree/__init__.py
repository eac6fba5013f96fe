"""DeterministicPlanner: a decision tree of steps."""
