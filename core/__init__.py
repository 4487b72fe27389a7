"""What everything builds on: errors, keys, seeds, records. It imports nothing above it."""
