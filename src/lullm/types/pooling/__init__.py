"""Pooling as plain data: a caller's parameters, the rows of a sequence that count, and the output."""
