"""The benchmark of record: every method on every data set, tuned alike and tested once."""
