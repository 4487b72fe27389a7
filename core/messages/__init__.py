"""Messages: tasks, introductions and replies, each declared once, with its bounds."""
