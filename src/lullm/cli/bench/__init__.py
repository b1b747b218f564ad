"""`lullm bench`: the speed of a server's answers, and of an engine's generation and start on this machine."""
