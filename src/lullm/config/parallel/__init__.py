"""What the workers of one model have of it: shares of its layers, stages of them."""
