"""Tools of MCP servers: how servers are reached and kept running, and what their answers mean."""
