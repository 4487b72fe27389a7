"""Parts of a client: its samples, their order, how it is judged and what it may send."""
