"""Hibernation: an engine's conversations in a folder on disk, from which another process goes on."""
