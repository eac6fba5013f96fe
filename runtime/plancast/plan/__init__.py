"""The state of one plan: its fields, requests, timeline and stored form."""
