"""From measured figures to a plan for many million plans, and a simulation that backs it; see docs/scale.md."""
