"""Lyu et al. 2022."""
