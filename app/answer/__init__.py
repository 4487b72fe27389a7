"""The answer of `fit`: strategies compared on held-out rows, then fitted to all rows."""
