"""What stands on the event loops of an engine's callers, wherever the engine runs."""
