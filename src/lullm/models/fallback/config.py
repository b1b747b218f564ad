"""The ModelConfig of a model that `transformers` runs, from its own config class and the model's blueprint."""

from typing import Any

import torch

from lullm.config.decoder import DecoderConfig
from lullm.config.encoding.mlx import with_mlx_method
from lullm.config.field import token_id_list
from lullm.config.model import ModelConfig, read_dtype
from lullm.errors import ModelLoadError
from lullm.models.fallback.blueprint import draw_blueprint


def foreign_config(data: dict[str, Any]) -> ModelConfig:
    """From a parsed `config.json`. Raises ModelLoadError: transformers cannot run it over lullm's attention."""
    architecture = data["architectures"][0]
    if with_mlx_method(data).get("quantization_config"):
        raise ModelLoadError(
            f"config.json: quantized checkpoints are not supported for {architecture}, which transformers runs; take "
            "one in bfloat16"
        )
    dtype = read_dtype(data, "float32")
    blueprint = draw_blueprint(data, getattr(torch, dtype))
    theirs, first = blueprint.config, blueprint.calls[0]
    max_len = getattr(theirs, "max_position_embeddings", None)
    if not isinstance(max_len, int) or max_len < 1:
        raise ModelLoadError(f"config.json: {architecture} names no max_position_embeddings, which lullm needs")
    soft_caps = {call.soft_cap for call in blueprint.calls} - {None}
    bos = token_id_list(theirs.bos_token_id, "config.json: bos_token_id")
    return ModelConfig(
        architecture=architecture,
        vocab_size=theirs.vocab_size,
        hidden_size=theirs.hidden_size,
        num_attention_heads=first.num_heads,
        num_key_value_heads=first.num_kv_heads,
        head_dim=first.head_dim,
        max_position_embeddings=max_len,
        layer_kinds=tuple(call.kind for call in blueprint.calls),
        # Its own code computes; what is left is what others ask of any family.
        family=DecoderConfig(
            intermediate_size=theirs.hidden_size,
            rms_norm_eps=1e-6,
            ropes=(None,) * len(blueprint.calls),
            attention_scale=1.0,
            has_sinks=any(call.has_sinks for call in blueprint.calls),
            attention_soft_cap=next(iter(soft_caps), None),
        ),
        tie_word_embeddings=bool(theirs.tie_word_embeddings),
        dtype=dtype,
        eos_token_ids=token_id_list(theirs.eos_token_id, "config.json: eos_token_id"),
        bos_token_id=bos[0] if bos else None,
        foreign=data,
    )
