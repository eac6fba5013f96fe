"""The bus of plancast: streams of events, and the stores of checkpoints and other durable data."""
