"""Tensors that a checkpoint holds as several others: joined, and decoded while they are written."""
