"""The version of Corsage; pyproject.toml says the same."""

VERSION = "0.1.0"
