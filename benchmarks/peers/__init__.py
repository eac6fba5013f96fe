"""Alternative systems, each in an environment of its own. See ../README.md."""
