"""Variances of users and clusters, estimated from sums, and how sure they are."""
