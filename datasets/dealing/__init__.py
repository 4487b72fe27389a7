"""How a table is dealt to users, and kept prepared."""
