"""Chooses the code that computes a model: lullm's own, or that of `transformers`. Loads torch only for the latter."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from lullm.config.engine_option import ModelImpl
from lullm.config.family.table import is_known
from lullm.config.gguf.mmproj.finding import AUTO
from lullm.config.json_file import overridden
from lullm.config.mistral.layout import has_config, read_config
from lullm.config.model import ModelConfig
from lullm.config.pooling.architecture import split_architecture
from lullm.errors import FamilyLimitError, ModelLoadError
from lullm.log import get_logger
from lullm.weights.reading.head import with_own_head

logger = get_logger(__name__)


def read_model_config(
    folder: Path,
    model_impl: ModelImpl,
    overrides: Mapping[str, Any] = MappingProxyType({}),
    mmproj: str = AUTO,
) -> ModelConfig:
    """The config of a model folder, for the family or for transformers.

    Args:
        model_impl: 'auto' uses transformers if lullm has no family for the architecture, or the family lacks a key that
            transformers implements; it logs this. overrides: other values for keys of config.json. mmproj: see
            `find_mmproj`.

    Raises:
        ModelLoadError: as `ModelConfig.from_folder`, or transformers cannot run it over lullm's attention.
    """
    if model_impl == "lullm":
        return _own(folder, overrides, mmproj)
    data = read_config(folder) if has_config(folder) else {}
    data = overridden(data, overrides) if data else data
    architecture = _architecture(data)
    if architecture is None:  # it names what is missing
        return _own(folder, overrides, mmproj)
    if model_impl == "transformers":
        return _foreign(folder, data, "")
    if is_known(split_architecture(architecture).base):
        try:
            return _own(folder, overrides)
        except FamilyLimitError as error:
            return _beyond_family(folder, data, error)
    from lullm.models.fallback.blueprint import check_architecture, has_architecture, is_installed  # torch

    reads_more = "text_config" in data  # than text; transformers may have it as a causal model all the same
    if reads_more or not has_architecture(architecture):
        if is_installed() and not reads_more:
            check_architecture(data, architecture)
        return ModelConfig.from_folder(folder, overrides)
    return _foreign(folder, data, ", since lullm has no family for it")


def _own(folder: Path, overrides: Mapping[str, Any], mmproj: str = AUTO) -> ModelConfig:
    return with_own_head(ModelConfig.from_folder(folder, overrides, mmproj), folder)


def _foreign(folder: Path, data: dict[str, Any], reason: str) -> ModelConfig:
    from lullm.models.fallback.config import foreign_config  # torch

    config = foreign_config(data)
    if not with_own_head(config, folder).tie_word_embeddings and config.tie_word_embeddings:
        config = foreign_config(data | {"tie_word_embeddings": False})
    logger.info(
        "%s runs by transformers' own code over lullm's attention: at torch's speed, without recorded steps and "
        "quantization%s",
        config.architecture,
        reason,
    )
    return config


def _beyond_family(folder: Path, data: dict[str, Any], limit: FamilyLimitError) -> ModelConfig:
    """The config by transformers, if it knows all keys that the family lacks. A key that it ignores may change
    everything.

    Raises FamilyLimitError: it does not, or refuses the model, too.
    """
    from lullm.models.fallback.blueprint import reads_keys  # torch

    if not reads_keys(data, limit.keys):
        raise limit
    try:
        return _foreign(folder, data, f", since lullm's own does not compute {', '.join(limit.keys)}")
    except ModelLoadError as error:
        raise FamilyLimitError(f"{limit}; nor does model_impl='transformers' run it: {error}", limit.keys) from error


def _architecture(data: dict[str, Any]) -> str | None:
    names = data.get("architectures")
    return names[0] if isinstance(names, list) and names and isinstance(names[0], str) else None
