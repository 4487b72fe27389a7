"""What everything builds on: errors, keys, seeds, records. Imports nothing of Corsage but itself."""
