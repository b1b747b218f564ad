"""Pooling as plain data: what a caller asks, which rows of a sequence count, and what the caller gets back."""
