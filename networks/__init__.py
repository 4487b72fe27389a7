"""Torch models as flat vectors, and how they are trained."""
