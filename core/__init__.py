"""The base of everything: errors, keys, seeds, records. It imports nothing above it."""
