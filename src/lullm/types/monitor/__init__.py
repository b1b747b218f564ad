"""Reports on an engine: counters, gauges, and the owners of blocks."""
