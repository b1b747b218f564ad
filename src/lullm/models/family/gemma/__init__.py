"""Gemma, a file per generation whose layers differ."""
