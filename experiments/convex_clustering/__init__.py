"""Experiments of Armacki et al. 2022."""
