"""Memory of GPUs and NPUs: the calls of their drivers as tables, and tensors over the memory that they map."""
