"""Workers as processes of this machine: starting and watching them, and the shared memory that connects them."""
