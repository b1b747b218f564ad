"""Adapters (LoRA, and prompt adapters) as plain data: what a caller asks for."""
