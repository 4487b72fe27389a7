"""A network of devices: patience, doubts, pauses, ownership of users' ids."""
