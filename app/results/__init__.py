"""Results of a run: its models, loaded and asked, and its tables."""
