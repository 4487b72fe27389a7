"""Experiments of Lyu et al. 2022."""
