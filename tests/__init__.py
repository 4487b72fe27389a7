"""Tests, by floor and family; what they share is in `support`."""
