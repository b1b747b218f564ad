"""The server's API reference: /openapi.json, and a page made of it without outside requests."""
