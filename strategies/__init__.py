"""Strategies: what the server combines, one file an algorithm."""
