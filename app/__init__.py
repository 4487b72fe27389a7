"""The wiring: configuration, engines, messages, checkpoints, reports."""
