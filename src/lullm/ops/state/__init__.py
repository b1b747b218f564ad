"""Recurrent states in the blocks of the KV cache, and what layers compute with them."""
