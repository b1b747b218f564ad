"""What `gpu_check.py` runs, a row each, and what its rows need."""
