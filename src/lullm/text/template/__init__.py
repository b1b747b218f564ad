"""Chat templates are foreign programs: here they run within bounds of steps, sizes, CPU time and memory."""
