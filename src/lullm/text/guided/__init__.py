"""Guided decoding: from the form that an output must have to the tokens that may come next."""
