"""Tables dealt to users, and kept prepared."""
