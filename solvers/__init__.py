"""The papers' mathematics on arrays: no Flower, no files, no messages."""
