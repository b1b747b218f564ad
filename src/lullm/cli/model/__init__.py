"""Sub-commands for model folders and the hub's cache."""
