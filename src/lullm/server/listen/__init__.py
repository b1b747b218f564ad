"""Where a server listens: ports, a unix socket, TLS."""
