"""Families with recurrent layers, over the shared decoder."""
