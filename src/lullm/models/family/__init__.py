"""One short file per family: its additions to the shared decoder, or its own decoder."""
