"""What people see of a run: progress, remarks, the table, the report and its plots."""
