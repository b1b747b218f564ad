"""Adapters (LoRA, prompt adapters) of the served model: each is a model by its own name. Endpoints load and unload."""
