"""Notifications of an app: what plans tell people and systems outside, and links by which people answer."""
