"""The numbers of a run, handed on to the tools that people look at them with."""
