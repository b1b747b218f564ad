"""The start of an engine: what its model's folder says, and what can be fetched ahead."""
