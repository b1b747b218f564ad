"""What a server with several models has more: their states, loading and unloading, and their metrics."""
