"""One conversation or prompt at a time on the terminal."""
