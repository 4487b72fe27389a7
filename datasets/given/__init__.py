"""Tables of what people have in Python: arrays, torch and Hugging Face data sets, loaders."""
