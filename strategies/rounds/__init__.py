"""Rounds, nodes, state and results: the parts that all strategies share."""
