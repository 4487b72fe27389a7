"""Convex losses of many users at once."""
