"""Experiments of Collins et al. 2021."""
