"""Numbers of two checkouts, compared bit for bit."""
