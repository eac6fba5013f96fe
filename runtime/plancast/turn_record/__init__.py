"""The record of a turn: its environment, its staged effects, its account and its timeline entry."""
