"""Armacki et al. 2022."""
