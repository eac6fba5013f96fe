"""The bridge to Soorma: its events and its workers."""
