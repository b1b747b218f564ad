"""Divides the layers of a model into stages of equal time, estimated by bytes of weights."""

import re
from collections.abc import Sequence
from dataclasses import replace

import torch

from lullm.config.model import ModelConfig
from lullm.config.parallel.cut import check_cut, first_layers
from lullm.config.resolved import ResolvedConfig
from lullm.errors import ConfigError
from lullm.log import get_logger
from lullm.models.registry import build_model
from lullm.weights.quantization import quantize_model

logger = get_logger(__name__)

_LAYER = re.compile(r"^model\.layers\.(\d+)\.")


def with_stages(config: ResolvedConfig, model: ModelConfig) -> ResolvedConfig:
    """The config with the layers of each stage: those of the user, or even ones.

    Raises:
        ConfigError: the model has too few layers, or cannot be cut there. UnsupportedError: it cannot be cut at all.
    """
    if config.pipeline_parallel_size == 1 and not config.pipeline_layers:
        return config
    num_layers = config.pipeline_layers or _even_layers(config, model)
    check_cut(model, num_layers)
    logger.info("pipeline: stages of %s layers", ", ".join(map(str, num_layers)))
    return replace(config, pipeline_layers=num_layers)


def _even_layers(config: ResolvedConfig, model: ModelConfig) -> tuple[int, ...]:
    first = first_layers(model)
    cut = even_cut(layer_bytes(model, config.quantization), config.pipeline_parallel_size, first)
    if cut is None:
        raise ConfigError(
            f"{model.architecture} with {model.num_hidden_layers} layers cannot be cut into "
            f"{config.pipeline_parallel_size} stages, which can begin with layers up to {max(first)}; lower "
            "pipeline_parallel_size"
        )
    return cut


def layer_bytes(model: ModelConfig, quantization: str | None = None) -> list[int]:
    """Bytes that a large batch of decodes reads of each layer; the matrix of the logits belongs to the last.

    Rows of the embedding do not count.
    """
    whole = build_model(model, torch.bfloat16, 1)
    if quantization is not None:
        quantize_model(whole, quantization)
    sizes = [0] * model.num_hidden_layers
    for name, parameter in whole.named_parameters():
        match = _LAYER.match(name)
        if match is not None:
            sizes[int(match[1])] += parameter.nbytes
        elif "lm_head." in name or ("embed_tokens." in name and model.tie_word_embeddings):
            sizes[-1] += parameter.nbytes
    return sizes


def even_cut(sizes: Sequence[int], num_stages: int, first: Sequence[int]) -> tuple[int, ...] | None:
    """Layers of each stage, so that the largest stage is as small as possible, and the first ones are not smaller than
    necessary; None: so many stages are not possible.

    Args:
        sizes: of the layers. first: those that a stage may begin with, ascending from 0.
    """
    ends = [*first[1:], len(sizes)]
    if num_stages > len(ends):
        return None
    starts: dict[int, tuple[int, tuple[int, ...]]] = {
        0: (0, ())
    }  # by the number of layers divided so far: the largest stage, and all stages
    for stage in range(num_stages):
        found: dict[int, tuple[int, tuple[int, ...]]] = {}
        for start, (largest, cut) in starts.items():
            for end in ends:
                if end > start and (end == len(sizes)) == (stage == num_stages - 1):
                    way = max(largest, sum(sizes[start:end])), (*cut, end - start)
                    found[end] = min(found.get(end, way), way)
        starts = found
    return starts[len(sizes)][1] if starts else None
