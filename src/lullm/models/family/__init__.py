"""One short file per family: what it adds to the shared decoder, or a decoder of its own."""
