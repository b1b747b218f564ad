"""The sizes of one worker's part of a model whose matrices several workers share.

As in Megatron-LM (https://arxiv.org/abs/1909.08053): heads, channels and the inner sizes of MLPs and experts are
divided, so a worker computes a model with fewer of each. Every worker has these parts whole: hidden states, norms on
them, routers, embeddings, latent vectors.
"""

import dataclasses
from dataclasses import dataclass, replace

from lullm.config.decoder import DecoderConfig
from lullm.config.layer.experts import ExpertsConfig
from lullm.config.layer.recurrent import (
    DeltaNetConfig,
    GatedUnitConfig,
    RecurrentConfig,
    SelectiveConfig,
    ShortConvolutionConfig,
    StateSpaceConfig,
)
from lullm.config.model import ModelConfig, Share
from lullm.errors import ConfigError, UnsupportedError
from lullm.types.layer_kind import FullAttention, KVHeads, LayerKind, RecurrentState, SlidingWindow
from lullm.types.parallel.placement import Axis


def share_of(config: ModelConfig, axis: Axis, deals_experts: bool = False) -> ModelConfig:
    """The config of one of `axis.size` workers' part; the same config for one worker.

    If there are fewer key heads than workers, several workers hold the same one.

    Args:
        deals_experts: a worker has some experts, whole; otherwise a part of each.

    Raises:
        ConfigError: a size cannot be divided, or there are no experts to deal.
        UnsupportedError: the model cannot be shared.
    """
    if deals_experts and (config.foreign is not None or config.family.experts is None):
        raise ConfigError(f"enable_expert_parallel: {config.architecture} has no experts; leave it out")
    if axis.size == 1:
        return config
    if config.foreign is not None:
        raise UnsupportedError(
            f"tensor_parallel_size={axis.size} is not supported for {config.architecture}, which is computed by "
            "transformers; leave it out, or choose an architecture that lullm computes itself"
        )
    parts = _Parts(config.architecture, axis.size)
    rank = axis.rank if deals_experts else None
    num_heads = config.num_attention_heads
    if config.has_attention:
        num_heads = parts.of(num_heads, "num_attention_heads")
    family = _family(config.family, parts, rank)
    return replace(
        config,
        num_attention_heads=num_heads,
        num_key_value_heads=parts.of_few(config.num_key_value_heads, "num_key_value_heads"),
        layer_kinds=tuple(_kind(kind, family.recurrent, parts) for kind in config.layer_kinds),
        family=family,
        share=Share(axis, config),
    )


@dataclass(frozen=True, slots=True)
class _Parts:
    """Divides by the number of workers, and names sizes that cannot be divided."""

    architecture: str
    count: int

    def of(self, size: int, name: str) -> int:
        if size % self.count:
            self._refuse(f"{name} ({size}) is no multiple of it")
        return size // self.count

    def of_few(self, size: int, name: str) -> int:
        """As `of`, for parts that several workers may hold: one each if there are fewer than workers."""
        if size < self.count:
            if self.count % size:
                self._refuse(f"{name} ({size}) neither divides it nor is a multiple of it")
            return 1
        return self.of(size, name)

    def _refuse(self, reason: str) -> None:
        raise ConfigError(
            f"tensor_parallel_size={self.count} does not divide {self.architecture}: {reason}; choose another number "
            "of workers, or pipeline_parallel_size"
        )


def _family(family: DecoderConfig, parts: _Parts, rank: int | None) -> DecoderConfig:
    return replace(
        family,
        intermediate_size=parts.of(family.intermediate_size, "intermediate_size"),
        query_heads=tuple(parts.of(number, "num_attention_heads_per_layer") for number in family.query_heads),
        intermediate_sizes=tuple(parts.of(size, "intermediate_size") for size in family.intermediate_sizes),
        experts=None if family.experts is None else _experts(family.experts, parts, rank),
        recurrent=None if family.recurrent is None else _recurrent(family.recurrent, parts),
    )


def _experts(experts: ExpertsConfig, parts: _Parts, rank: int | None) -> ExpertsConfig:
    """Every worker has a part of every expert; or, with the worker's rank, some of them. All share the common one."""
    shared = experts.shared_intermediate_size
    if shared is not None:
        experts = replace(experts, shared_intermediate_size=parts.of(shared, "the inner size of the shared expert"))
    if rank is None:
        inner_size = parts.of(experts.intermediate_size, "the inner size of an expert")
        return replace(experts, intermediate_size=inner_size)
    count = parts.of(experts.num_experts, "the number of experts")
    return replace(experts, own=range(rank * count, (rank + 1) * count))


def _recurrent(recurrent: RecurrentConfig, parts: _Parts) -> RecurrentConfig:
    if isinstance(recurrent, DeltaNetConfig):
        return replace(
            recurrent,
            num_key_heads=parts.of_few(recurrent.num_key_heads, "linear_num_key_heads"),
            num_value_heads=parts.of(recurrent.num_value_heads, "linear_num_value_heads"),
        )
    if isinstance(recurrent, SelectiveConfig | ShortConvolutionConfig):
        return replace(recurrent, num_channels=parts.of(recurrent.num_channels, "the channels of a convolution"))
    if isinstance(recurrent, GatedUnitConfig):
        return replace(recurrent, num_heads=parts.of(recurrent.num_heads, "the heads of recurrent layers"))
    assert isinstance(recurrent, StateSpaceConfig)
    # A norm covers the heads of a group, so a group must not be divided between workers.
    divide = parts.of_few if recurrent.gate == "no norm" else parts.of
    return replace(
        recurrent,
        num_heads=parts.of(recurrent.num_heads, "the heads of a state space"),
        num_groups=divide(recurrent.num_groups, "the groups of a state space"),
    )


def _kind(kind: LayerKind, recurrent: RecurrentConfig | None, parts: _Parts) -> LayerKind:
    if isinstance(kind, RecurrentState):
        assert recurrent is not None, "of a family with recurrent layers"
        return RecurrentState(recurrent.state_shapes)
    if isinstance(kind, FullAttention | SlidingWindow) and kind.heads is not None:
        heads = parts.of_few(kind.heads.num_heads, "num_key_value_heads")
        return dataclasses.replace(kind, heads=KVHeads(heads, kind.heads.head_dim))
    return kind
