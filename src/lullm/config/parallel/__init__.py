"""What becomes of a model's sizes when several workers share it, and of its layers when they are cut into stages."""
