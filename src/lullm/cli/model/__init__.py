"""Sub-commands about model folders and the hub's cache."""
