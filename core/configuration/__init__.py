"""The configuration: every key by group, read from words, files and Python."""
