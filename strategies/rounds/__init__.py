"""What all strategies share: rounds, nodes, state, results."""
