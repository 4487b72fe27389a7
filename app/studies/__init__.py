"""Studies: the same comparison for several seeds, and for several values of keys."""
