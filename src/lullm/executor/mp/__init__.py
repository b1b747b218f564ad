"""Workers as processes of this machine: what starts and watches them, the memory that connects them, and their GPUs."""
