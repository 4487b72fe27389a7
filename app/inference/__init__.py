"""Models taken home: `corsage predict` and `corsage export`, of a run folder or a device's."""
