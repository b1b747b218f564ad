"""Reading a checkpoint: its files, and how far it is."""
