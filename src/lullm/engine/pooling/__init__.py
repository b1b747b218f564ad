"""Requests that pool: what the model can give of them, and their output."""
