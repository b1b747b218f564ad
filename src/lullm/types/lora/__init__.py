"""Adapters (LoRA) as plain data: what a caller asks for."""
