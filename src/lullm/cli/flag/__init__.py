"""Flags of several commands."""
