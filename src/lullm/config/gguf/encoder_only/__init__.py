"""GGUF files of encoders, and what files say of pooling."""
