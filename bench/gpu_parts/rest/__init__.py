"""What `gpu_check.py --rest` runs."""
