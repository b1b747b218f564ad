"""The page at `/`: its files, and the stream of facts that it shows."""
