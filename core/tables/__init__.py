"""Tables at a node: their columns, what these become, and how all nodes agree on it."""
