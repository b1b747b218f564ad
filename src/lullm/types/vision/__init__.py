"""Pictures in prompts, cut into tiles, as plain data."""
