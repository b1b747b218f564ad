"""A model's sizes when several workers share it, and its layers when they are cut into stages."""
