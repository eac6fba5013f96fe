"""Moves of a plan through its state machine: transitions, what a state asks for, events that came early."""
