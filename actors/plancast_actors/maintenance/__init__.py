"""Background sweeps: stalled plans, unused state machines."""
