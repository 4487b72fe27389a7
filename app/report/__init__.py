"""The parts of the report: charts as numbers, how they are drawn, and what answers the pointer."""
