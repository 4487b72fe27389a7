"""Before round 1: what nodes say of their data, what follows from it, and what is refused."""
