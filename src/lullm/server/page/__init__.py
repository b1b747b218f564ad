"""The page at `/`: its files, and the stream of its data."""
