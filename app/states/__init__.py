"""Personal states: what users keep between rounds, and never send."""
