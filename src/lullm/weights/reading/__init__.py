"""Reading a checkpoint: its files, and the progress."""
