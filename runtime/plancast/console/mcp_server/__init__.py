"""A deployment as an MCP server: goals are tools, plans are resources, and what plans ask people is elicited."""
