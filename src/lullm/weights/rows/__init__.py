"""Rows: where a tensor of a checkpoint is written to, and the only way to write a weight."""
