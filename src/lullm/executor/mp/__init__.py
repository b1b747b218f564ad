"""Workers as processes of this machine: what starts and watches them, and the shared memory that connects them."""
