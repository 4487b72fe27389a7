"""A SuperNode's resident worker: a process that keeps model and data between messages.

Flower starts a process for each message to a device. That process (`door.py`) hands the message to
the worker, which an earlier one started, and gives its reply to Flower; if anything is wrong with
the worker it does the work itself. They talk over a socket of their user's (`lair.py`), in bytes as
Flower serialises them (`talk.py`).
"""
