"""The engine: the one loop and the one owner of state. Requests in, steps, outputs out."""
