"""Effects: what tasks do outside of plancast, with an outcome that is known, looked up, or left to a person."""
