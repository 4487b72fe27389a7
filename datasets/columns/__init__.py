"""Tables of one's own: cells read as typed columns, summed up, and made a model's inputs."""
