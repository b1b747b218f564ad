"""Tensors that a checkpoint stores in several parts: joined, and decoded while they are written."""
