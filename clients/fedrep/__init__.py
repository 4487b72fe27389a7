"""Collins et al. 2021 at the users."""
