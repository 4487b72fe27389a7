"""Models with a body and a head."""
