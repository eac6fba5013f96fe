"""Plans as runs of AG-UI: their changes, in their one order, as the protocol's events."""
