"""All that people see of a run on the terminal: progress, remarks, notes and the table."""
