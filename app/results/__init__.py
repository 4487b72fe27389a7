"""What is left of a run: its models, loaded and asked, and its tables."""
