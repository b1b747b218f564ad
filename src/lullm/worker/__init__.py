"""The worker: one device's model and memory, its sleep, and the runs of its plans."""
