"""Gemma 2 and 3. Where they have windows, and what divides their scores, is in the programs that run a file."""

from lullm.config.gguf.keys import Architecture, Data, Keys, short
from lullm.config.gguf.rope import rope_scaling, whole_heads

_SECOND_LARGEST, _THIRD_LARGEST = 46, 62
"""Layers of Gemma 2 27B and of Gemma 3 27B, which divide scores by the root of hidden_size / heads."""


def _gemma(keys: Keys, architecture: str, layers_of_largest: int) -> Data:
    whole_heads(keys)
    head_dim = keys.need("attention.key_length")
    is_largest = keys.need("block_count") == layers_of_largest
    scalar = keys.need("embedding_length") / keys.need("attention.head_count") if is_largest else head_dim
    return {
        "architectures": [architecture],
        "sliding_window": keys.need("attention.sliding_window"),
        "query_pre_attn_scalar": scalar,
        "rope_scaling": rope_scaling(keys),
    }


def _gemma2(keys: Keys) -> Data:
    """A file that does not say the caps means the released models'."""
    caps = {name: keys.number(name) for name in ("attn_logit_softcapping", "final_logit_softcapping")}
    stated = {name: cap for name, cap in caps.items() if cap is not None}
    return _gemma(keys, "Gemma2ForCausalLM", _SECOND_LARGEST) | stated


def _gemma3(keys: Keys) -> Data:
    data = _gemma(keys, "Gemma3ForCausalLM", _THIRD_LARGEST)
    local = keys.number("rope.freq_base_swa")
    data["rope_local_base_freq"] = None if local is None else short(local)
    data["final_logit_softcapping"] = keys.number("final_logit_softcapping")
    pattern = keys.get("attention.sliding_window_pattern")
    data["sliding_window_pattern"] = pattern if isinstance(pattern, int) else None
    return data


GEMMA: dict[str, Architecture] = {"gemma2": Architecture(_gemma2), "gemma3": Architecture(_gemma3)}
