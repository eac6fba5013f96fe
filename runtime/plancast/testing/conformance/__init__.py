"""The planner conformance kit."""
