"""Runs that are killed, starved and damaged, and must come to the same numbers."""
