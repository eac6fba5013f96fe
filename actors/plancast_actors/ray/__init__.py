"""The connection to Ray, its jobs, and the base of every actor process."""
