"""The memory that a model will take, before its engine is there, and the options with which it takes no more.

Weights are those of a model on the meta device, as an engine builds it; places of adapters are those of its layers. The
KV cache gets a fixed size, since what an engine takes by itself (a share of what is free) would leave nothing for the
next model.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lullm.config.engine import EngineConfig
from lullm.config.lora.adapter import adapter_digest
from lullm.config.model import ModelConfig
from lullm.config.option.option import options_of
from lullm.config.resolved import ResolvedConfig
from lullm.engine.start.model import OpenedModel
from lullm.errors import ConfigError, UnsupportedError
from lullm.fleet.record import Need
from lullm.kv.layout import (
    block_bytes,
    draft_block_bytes,
    max_len_within,
    num_blocks_for_len,
    num_host_blocks_within,
)
from lullm.units import MIB, format_bytes

if TYPE_CHECKING:
    from lullm.models.protocol import Model

KV_SHARE = 8
"""A model's KV cache takes the budget divided by this, unless an option says its size."""
LEAST_LEN = 1024
"""Tokens of a sequence that such a cache holds at least, if the model is not shorter."""
PROCESS_BYTES = 450 * MIB
"""Memory of a process of its own: Python and torch. See `cli.plan.roofline`."""
ASLEEP_BYTES = 8 * MIB
"""What stays of a sleeping model, tables and Python's objects; of a small one an eighth of what it needs awake."""
_ONE_DEVICE = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")


@dataclass(frozen=True, slots=True)
class PlannedModel:
    """A model of a fleet before it is loaded.

    Attributes:
        opened: its folder, with the resolved config that clients see.
        engine_config: for its engine.
        read_adapter: gives the digest of an adapter that fits the model. Blocking; raises ModelLoadError: it does not.
            None: the model takes no adapters.
    """

    opened: OpenedModel
    engine_config: EngineConfig
    need: Need
    read_adapter: Callable[[Path], bytes] | None = None


def check_fits_a_fleet(config: EngineConfig) -> None:
    """Check that a fleet can account for an engine. Raises UnsupportedError, ConfigError."""
    for name in _ONE_DEVICE:
        if getattr(config, name) > 1:
            raise UnsupportedError(
                f"{name}={getattr(config, name)}: a model of a fleet has one worker; serve it with a server of its own"
            )
    if config.auto_wake is False:
        raise ConfigError("auto_wake: a fleet wakes its models for their requests; leave it out")
    if config.gpu_memory_utilization is not None:
        raise ConfigError(
            "gpu_memory_utilization is a share of what is free; of several models, say each one's kv_cache_memory_bytes"
        )


def plan_model(config: EngineConfig, opened: OpenedModel, budget_bytes: int, has_process: bool) -> PlannedModel:
    """Plan the memory of one model. Imports torch.

    Args:
        budget_bytes: of all models. has_process: its engine has a process of its own.

    Raises:
        ConfigError: the KV cache has no room for the length that the options ask for.
        ModelLoadError: the model cannot be built, its files are damaged, or no layer may have the adapters that the
            options ask for.
    """
    resolved = opened.config
    model = _with_chunks(opened, resolved)
    size = block_bytes(model, resolved.block_size, resolved.kv_dtype) + draft_block_bytes(resolved)
    num_blocks = _num_blocks(config, resolved, opened, budget_bytes)
    sizes = model, resolved.block_size, resolved.kv_dtype
    longest = max_len_within(*sizes, num_blocks, resolved.max_model_len)
    if config.max_model_len is not None and longest < resolved.max_model_len:
        raise ConfigError(
            f"the KV cache of {resolved.served_model_name!r} has room for {longest} tokens in "
            f"{format_bytes(num_blocks * size)}, fewer than max_model_len={resolved.max_model_len}; lower that, or "
            "raise kv_cache_memory_bytes or memory_budget"
        )
    resolved = dataclasses.replace(resolved, max_model_len=longest)
    kv_bytes = num_blocks * size
    if resolved.device == "cpu":  # both pools lie in the same memory
        kv_bytes += num_host_blocks_within(resolved, model, num_blocks) * size
    beside = PROCESS_BYTES if has_process else 0
    built = _built(resolved, opened.model_config, opened.folder)
    places_bytes, kept_bytes = _adapters_bytes(resolved, built)
    work_bytes = _work_bytes(opened, resolved) + beside
    need = Need(_weights_bytes(resolved, built), kv_bytes, work_bytes, places_bytes + kept_bytes)
    asleep_bytes = min(ASLEEP_BYTES, need.awake_bytes // 8) + kept_bytes + beside
    need = dataclasses.replace(need, asleep_bytes=asleep_bytes)
    # The fleet's policy has the ladder, the waits and their bounds.
    idle = {each.name: each.default for each in options_of(EngineConfig) if each.group == "idle"}
    engine_config = dataclasses.replace(
        config,
        **idle | {"auto_wake": False},
        max_model_len=longest,
        kv_cache_memory_bytes=None,
        num_gpu_blocks_override=num_blocks or None,
    )
    reader = _adapter_reader(resolved, built) if resolved.enable_lora else None
    return PlannedModel(dataclasses.replace(opened, config=resolved), engine_config, need, reader)


def _num_blocks(config: EngineConfig, resolved: ResolvedConfig, opened: OpenedModel, budget_bytes: int) -> int:
    model = _with_chunks(opened, resolved)
    sizes = model, resolved.block_size, resolved.kv_dtype
    if config.num_gpu_blocks_override is not None:
        return config.num_gpu_blocks_override
    size = block_bytes(*sizes) + draft_block_bytes(resolved)
    if size == 0:  # an encoder keeps nothing
        return 0
    if config.kv_cache_memory_bytes is not None:
        return max(config.kv_cache_memory_bytes // size, 1)
    # As an engine by itself: twice the need of all sequences leaves as much again for cached prefixes.
    enough = 2 * resolved.max_num_seqs * num_blocks_for_len(*sizes, resolved.max_model_len)
    least = num_blocks_for_len(*sizes, config.max_model_len or min(LEAST_LEN, resolved.max_model_len))
    return max(min(budget_bytes // KV_SHARE // size, enough), least)


def _with_chunks(opened: OpenedModel, resolved: ResolvedConfig) -> ModelConfig:
    from lullm.ops.state.chunks import with_chunks_of_use

    return with_chunks_of_use(opened.model_config, resolved.device, resolved.dtype, resolved.num_workers)


def _built(config: ResolvedConfig, model: ModelConfig, folder: Path) -> "Model":
    """The model as an engine holds it, on the meta device. Raises ModelLoadError."""
    import torch

    from lullm.models.registry import build_model
    from lullm.weights.storage import choose_storage

    built = build_model(model, getattr(torch, config.dtype), min(config.max_model_len, LEAST_LEN))
    keeps = config.load_format != "dummy" and config.device == "cpu"
    choose_storage(built, model.encoding, config.quantization, folder if keeps else None)
    return built


def _weights_bytes(config: ResolvedConfig, built: "Model") -> int:
    """The weights of the model, and of its draft model."""
    from lullm.weights.materialize import weights_bytes

    draft = config.draft
    of_draft = 0 if draft is None else weights_bytes(_built(config.of_draft, draft.model, draft.folder))
    return weights_bytes(built) + of_draft


def _adapters_bytes(config: ResolvedConfig, built: "Model") -> tuple[int, int]:
    import torch

    from lullm.weights.lora.places import adapters_bytes

    return adapters_bytes(built, config, getattr(torch, config.dtype), config.device == "cpu")


def _adapter_reader(config: ResolvedConfig, built: "Model") -> Callable[[Path], bytes]:
    """See `PlannedModel`. It keeps a few layers of the model, which with many experts takes seconds to build."""
    import torch

    from lullm.weights.lora.layers import lora_layers
    from lullm.weights.lora.reading import read_adapter

    layers, rules, dtype = lora_layers(built), built.rules, getattr(torch, config.dtype)

    def read(folder: Path) -> bytes:
        read_adapter(folder, layers, rules, config.max_lora_rank, dtype)
        return adapter_digest(folder)

    return read


def _work_bytes(opened: OpenedModel, resolved: ResolvedConfig) -> int:
    """A rough bound of a step: its recorded decodes, and the activations and rows of logits of the largest batch."""
    from lullm.step.graphs import workspace_bytes

    model, num_tokens = opened.model_config, min(resolved.max_num_batched_tokens, resolved.max_model_len)
    item_bytes = 4 if resolved.dtype == "float32" else 2
    rows = num_tokens * (4 * model.stream_size + model.family.widest_row) * item_bytes
    logits = min(resolved.max_num_seqs, num_tokens) * model.vocab_size * 4 if model.has_lm_head else 0
    models = [model, *([] if resolved.draft is None else [resolved.draft.model])]  # one runs after the other
    recorded = max(workspace_bytes(each, resolved.max_num_seqs) for each in models)
    return recorded + rows + logits
