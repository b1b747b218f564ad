"""Memory that large tensors live in: reserved once, at one address, owned by an engine."""
