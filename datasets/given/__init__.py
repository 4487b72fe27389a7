"""What people have in Python, as a table: arrays, torch and Hugging Face data sets, loaders."""
