"""From the arrays of users to those of all, or of a cluster."""
