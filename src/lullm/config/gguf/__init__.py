"""GGUF files (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md): their header, and the config made from it."""
