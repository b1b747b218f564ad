"""Decoders that also attend to the rows of an encoder: `decoder`, which they share; a file per family."""
