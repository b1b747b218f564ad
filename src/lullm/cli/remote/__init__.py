"""Commands for a running server."""
