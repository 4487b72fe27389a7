"""Hostile replies to every strategy: what comes of them."""
