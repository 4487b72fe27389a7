"""Hostile messages to a device, and a watch on what the device does of them."""
