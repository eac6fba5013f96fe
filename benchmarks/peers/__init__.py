"""The systems that a user might pick instead, each in an environment of its own. See ../README.md."""
