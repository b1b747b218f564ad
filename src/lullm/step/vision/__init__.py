"""Rows of pictures in a step."""
