"""Families of the shared decoder that norm by mean and variance; in some attention and MLP stand side by side."""
