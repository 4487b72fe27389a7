"""The run folder: begun, locked, checkpointed, resumed, ended, awaited, cleaned."""
