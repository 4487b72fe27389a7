"""Pages of `--help`: a short one by default, and one for whatever is named."""
