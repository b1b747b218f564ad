"""Architectures without a family file, run by the installed `transformers` over lullm's paged attention."""
