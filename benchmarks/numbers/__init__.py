"""Whether two checkouts compute the same numbers, bit for bit."""
