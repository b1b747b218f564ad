"""Batch files: many requests in one file, answered without a socket."""
