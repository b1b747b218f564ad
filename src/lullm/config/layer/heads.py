"""Heads of attention: their numbers and sizes in a config.json, under the keys that most families share."""

from lullm.config.field import MOST_HEAD_DIM, MOST_HEADS, MOST_HIDDEN, Data, positive_int
from lullm.errors import ModelLoadError


def read_heads(data: Data) -> tuple[int, int, int, int]:
    """(heads, heads of keys and values, hidden size, head size). Raises ModelLoadError."""
    heads = positive_int(data, "num_attention_heads", most=MOST_HEADS)
    kv_heads = positive_int(data, "num_key_value_heads", heads, MOST_HEADS)
    hidden_size = positive_int(data, "hidden_size", most=MOST_HIDDEN)
    if heads % kv_heads:
        raise ModelLoadError(
            f"config.json: num_attention_heads ({heads}) must be a multiple of num_key_value_heads ({kv_heads})"
        )
    head_dim = positive_int(data, "head_dim", hidden_size // heads, MOST_HEAD_DIM)
    if head_dim % 2:
        raise ModelLoadError(f"config.json: head_dim must be even for rotary embeddings, got {head_dim}")
    return heads, kv_heads, hidden_size, head_dim
