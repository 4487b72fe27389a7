"""The sum-of-norms problem solved exactly, with a proof of optimality."""
