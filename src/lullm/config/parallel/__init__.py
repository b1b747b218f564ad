"""What becomes of a model's sizes when several workers share it."""
