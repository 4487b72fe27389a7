"""Speed, measured side by side with bare loops."""
