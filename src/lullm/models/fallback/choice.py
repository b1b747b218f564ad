"""Whose code computes a model: lullm's own, or that of `transformers`. Loads torch for the latter only."""

from pathlib import Path
from typing import Any

from lullm.config.engine_option import ModelImpl
from lullm.config.family.table import is_known
from lullm.config.json_file import read_object
from lullm.config.model import ModelConfig
from lullm.config.pooling.architecture import split_architecture
from lullm.log import get_logger
from lullm.weights.reading.head import with_own_head

logger = get_logger(__name__)


def read_model_config(folder: Path, model_impl: ModelImpl) -> ModelConfig:
    """The config of a model folder, for the family or for transformers.

    Args:
        model_impl: 'auto' takes transformers where lullm has no family for the architecture, and logs it.

    Raises:
        ModelLoadError: as `ModelConfig.from_folder`, or transformers cannot run it over lullm's attention.
    """
    if model_impl == "lullm":
        return with_own_head(ModelConfig.from_folder(folder), folder)
    data = read_object(folder / "config.json") if (folder / "config.json").is_file() else {}
    architecture = _architecture(data)
    if architecture is None or (model_impl == "auto" and is_known(split_architecture(architecture).base)):
        # Of no architecture: it names what is missing.
        return with_own_head(ModelConfig.from_folder(folder), folder)
    from lullm.models.fallback.blueprint import check_architecture, has_architecture, is_installed  # torch
    from lullm.models.fallback.config import foreign_config

    reads_more = "text_config" in data  # than text; transformers may have it as a causal model all the same
    if model_impl == "auto" and (reads_more or not has_architecture(architecture)):
        if is_installed() and not reads_more:
            check_architecture(data, architecture)
        return ModelConfig.from_folder(folder)
    config = foreign_config(data)
    if not with_own_head(config, folder).tie_word_embeddings and config.tie_word_embeddings:
        config = foreign_config(data | {"tie_word_embeddings": False})
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
