"""Families of the shared decoder with norms by mean and variance; some compute attention and MLP in parallel."""
