"""The tensors of GGUF files: blocks of numbers, their names in a checkpoint, and reading them piece by piece."""
