"""Heads that are solved exactly, and bodies of random features, for FedRep."""
