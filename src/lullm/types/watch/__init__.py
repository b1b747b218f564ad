"""What those who watch an engine see of it: counters, gauges, and who holds which blocks."""
