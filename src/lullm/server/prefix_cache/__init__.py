"""What a server keeps of its prefix cache from one life to the next."""
