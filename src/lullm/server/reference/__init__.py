"""What the server says of itself: /openapi.json, and a page made of it without outside requests."""
