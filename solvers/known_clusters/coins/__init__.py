"""Algorithms 1 and 2 of Lyu et al. 2022: their settings, their coins, their steps."""
