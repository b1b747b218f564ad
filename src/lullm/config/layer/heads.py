"""Heads of attention: their numbers and sizes in a config.json, under the keys that most families share."""

from lullm.config.field import MOST_HEAD_DIM, MOST_HEADS, MOST_HIDDEN, Data, positive_int
from lullm.errors import ModelLoadError


def read_heads(data: Data) -> tuple[int, int, int, int]:
    """(heads, heads of keys and values, hidden size, head size). Raises ModelLoadError."""
    heads = positive_int(data, "num_attention_heads", most=MOST_HEADS)
    kv_heads = dividing_heads(data, default=heads)
    hidden_size = positive_int(data, "hidden_size", most=MOST_HIDDEN)
    head_dim = positive_int(data, "head_dim", hidden_size // heads, MOST_HEAD_DIM)
    if head_dim % 2:
        raise ModelLoadError(f"config.json: head_dim must be even for rotary embeddings, got {head_dim}")
    return heads, kv_heads, hidden_size, head_dim


def dividing_heads(data: Data, name: str = "num_key_value_heads", default: int | None = None) -> int:
    """`data[name]`, of which the number of query heads is a multiple. Raises ModelLoadError."""
    number, heads = positive_int(data, name, default, MOST_HEADS), positive_int(data, "num_attention_heads")
    if heads % number:
        raise ModelLoadError(f"config.json: num_attention_heads ({heads}) must be a multiple of {name} ({number})")
    return number
