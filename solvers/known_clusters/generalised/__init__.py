"""The marginal likelihood of generalised mixed models, and its most likely parameters."""
