"""Families that norm by mean and variance, or without weights: what their files say."""
