"""Requests that pool: their checks and outputs."""
