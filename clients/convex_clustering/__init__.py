"""Armacki et al. 2022 at the users."""
