"""What an output must look like: what a caller asks, and what a draw carries."""
