"""The pool of reasoner actors that call models."""
