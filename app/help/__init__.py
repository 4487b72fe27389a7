"""What `--help` says: short by default, and a page for whatever is named."""
