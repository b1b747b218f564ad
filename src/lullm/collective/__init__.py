"""What workers say to each other about tensors: sums, joined columns, hidden states for the next stage."""
