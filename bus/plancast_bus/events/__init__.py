"""Event envelopes, their wire formats and trace context."""
