"""HTTP/1.1 on a connection: heads, bodies, and the answers of an ASGI application."""
