"""Guided decoding: from the form that an output must have to the next tokens that it allows."""
