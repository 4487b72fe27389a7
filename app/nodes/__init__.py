"""Nodes: their identity, the limits on messages there, and the work of their users."""
