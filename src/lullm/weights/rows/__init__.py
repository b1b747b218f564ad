"""Rows: the place of a checkpoint's tensor, and the only way to write a weight."""
