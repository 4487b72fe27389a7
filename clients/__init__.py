"""Clients: what a user does, one file an algorithm."""
