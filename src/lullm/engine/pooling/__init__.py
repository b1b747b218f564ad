"""Requests that pool: the checks of what they ask, and their outputs."""
