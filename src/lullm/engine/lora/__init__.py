"""An engine's adapters (LoRA): which there are, and which of them workers have read."""
