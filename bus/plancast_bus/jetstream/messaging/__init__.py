"""Publishing, consuming and reading messages of streams."""
