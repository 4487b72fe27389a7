"""What happens at a node: who it is, what a message may do there, the work of its users."""
