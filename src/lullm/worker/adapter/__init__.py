"""A worker's adapters (LoRA): those it has read, and the places of those in use."""
