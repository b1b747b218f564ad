"""An engine in a process of its own: the server's process keeps its Python lock for requests, and loads no torch."""
