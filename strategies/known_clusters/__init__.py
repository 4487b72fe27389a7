"""Lyu et al. 2022 at the server."""
