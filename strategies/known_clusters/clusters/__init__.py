"""The known clusters of a run: their cohorts, and how strongly they pull."""
