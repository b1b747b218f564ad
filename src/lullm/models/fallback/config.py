"""The ModelConfig of a model that `transformers` runs, from its own config class and the model's blueprint."""

from pathlib import Path
from typing import Any, cast, get_args

import torch

from lullm.config.decoder import DecoderConfig
from lullm.config.engine_option import ModelImpl
from lullm.config.family.table import is_known
from lullm.config.field import shown, token_id_list
from lullm.config.json_file import read_object
from lullm.config.model import ModelConfig, ModelDType
from lullm.config.pooling.architecture import split_architecture
from lullm.errors import ModelLoadError
from lullm.log import get_logger
from lullm.models.fallback.blueprint import draw_blueprint, has_architecture

logger = get_logger(__name__)


def read_model_config(folder: Path, model_impl: ModelImpl) -> ModelConfig:
    """The config of a model folder, for whoever runs the model.

    Args:
        model_impl: 'auto' takes transformers where lullm has no family for the architecture, and logs it.

    Raises:
        ModelLoadError: as `ModelConfig.from_folder`, or transformers cannot run it over lullm's attention.
    """
    if model_impl == "lullm":
        return ModelConfig.from_folder(folder)
    data = read_object(folder / "config.json") if (folder / "config.json").is_file() else {}
    architecture = _architecture(data)
    if model_impl == "auto" and (
        architecture is None or is_known(split_architecture(architecture).base) or not has_architecture(architecture)
    ):
        return ModelConfig.from_folder(folder)
    if architecture is None:
        return ModelConfig.from_folder(folder)  # names what is missing
    config = foreign_config(data)
    logger.info(
        "%s runs by transformers' own code over lullm's attention: at torch's speed, without recorded steps and "
        "quantization%s",
        architecture,
        ", since lullm has no family for it" if model_impl == "auto" else "",
    )
    return config


def _architecture(data: dict[str, Any]) -> str | None:
    names = data.get("architectures")
    return names[0] if isinstance(names, list) and names and isinstance(names[0], str) else None


def foreign_config(data: dict[str, Any]) -> ModelConfig:
    """From a parsed `config.json`. Raises ModelLoadError: transformers cannot run it over lullm's attention."""
    architecture = data["architectures"][0]
    if data.get("quantization_config"):
        raise ModelLoadError(
            f"config.json: quantized checkpoints are not supported for {architecture}, which transformers runs; take "
            "one in bfloat16"
        )
    dtype = data.get("dtype") or data.get("torch_dtype") or "float32"
    if dtype not in get_args(ModelDType):
        raise ModelLoadError(f"config.json: dtype {shown(dtype)} is not one of {', '.join(get_args(ModelDType))}")
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
        dtype=cast(ModelDType, dtype),
        eos_token_ids=token_id_list(theirs.eos_token_id, "config.json: eos_token_id"),
        bos_token_id=bos[0] if bos else None,
        foreign=data,
    )
