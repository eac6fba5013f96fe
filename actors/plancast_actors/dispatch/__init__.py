"""Dispatchers: from streams to plan hosts, with in-flight limits and quarantine."""
