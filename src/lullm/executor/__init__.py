"""Executors: they run the workers. One interface: the engine does not know how many workers there are, or where."""
