"""Execution of workers' tasks: readers, handlers, responses."""
