"""Rotary position embedding (https://arxiv.org/abs/2104.09864) and its variants, as one table of cos and sin.

With head size D, pair i of a head turns by `position * inv_freq[i]`, `inv_freq[i] = theta ** (-2 i / D)`. The variants
differ in `inv_freq` and in one factor on cos and sin:
- linear: all frequencies divided by `factor` (position interpolation, https://arxiv.org/abs/2306.15595).
- dynamic: theta grows with the sequence length ("NTK-aware", Peng et al., https://arxiv.org/abs/2309.00071, app. A).
- ntk: the same once for all: the slowest pair turns `factor` times slower, the fastest a little (GTE).
- llama3: long wavelengths divided by `factor`, short ones kept, a ramp between (Llama 3.1 model card and code).
- longrope: every frequency divided by its own factor (https://arxiv.org/abs/2402.13753).
- proportional: the first pairs turn with the frequencies of a whole head, the others do not turn (Gemma 4).
- yarn: the ramp in terms of rotations over the trained length, plus an attention factor (2309.00071, sec. 3).
"""

import math

import torch
from torch import Tensor, nn

from lullm.config.model import ModelConfig
from lullm.config.rope import RopeConfig
from lullm.errors import ModelLoadError
from lullm.machine.memory import available_memory_bytes
from lullm.units import format_bytes

_SLAB = 1 << 16
"""Positions of the table that are computed at once."""


class Rotary(nn.Module):
    """The table that `Ops.rope_and_cache` reads: `cos_sin_cache [max_model_len, D]` float32, cosines then sines.

    Pairs that do not turn, or all of them without a rope, have cosine 1 and sine 0. So one function of the ops serves
    partly rotated heads, and layers without positions. `weights.rule.HeadOrder` orders the elements of a head so that
    the first pairs turn.

    It is computed here, on the CPU, not on the meta device, since it is never loaded.

    Raises:
        ModelLoadError: there is no memory for it, or a frequency is not finite.
    """

    cos_sin_cache: Tensor
    axes: Tensor | None

    def __init__(self, config: ModelConfig, rope: RopeConfig | None, max_model_len: int):
        super().__init__()
        inv_freq, scale = rotary_frequencies(config, rope, max_model_len) if rope else (torch.zeros(0, device="cpu"), 1)
        if not (inv_freq.isfinite().all() and math.isfinite(scale)):
            raise ModelLoadError(f"config.json: these rope parameters give frequencies that are not finite: {rope}")
        _check_memory(max_model_len, config)
        table = torch.empty(max_model_len, config.head_dim, dtype=torch.float32, device="cpu")
        for first in range(0, max_model_len, _SLAB):
            _fill(table[first : first + _SLAB], first, inv_freq, scale)
        self.register_buffer("cos_sin_cache", table, persistent=False)
        axes = () if config.vision is None else config.vision.axes
        axes = axes + (0,) * (config.head_dim // 2 - len(axes)) if axes else ()  # pairs that do not turn
        of_elements = torch.tensor(axes * 2, device="cpu") if axes else None  # cosines, then sines
        self.register_buffer("axes", of_elements, persistent=False)

    def forward(self, planes: Tensor | None) -> Tensor:
        """The table of a step: the whole one; or where tokens have several positions `[3, T]`, their rows `[T, D]`, in
        which each pair has the angle of its own axis.
        """
        if planes is None:
            return self.cos_sin_cache
        assert self.axes is not None, "of models with planes of positions"
        return self.cos_sin_cache.gather(0, planes[self.axes].T)


def _check_memory(max_model_len: int, config: ModelConfig) -> None:
    num_bytes, available = max_model_len * config.head_dim * 4, available_memory_bytes()
    if num_bytes > available:
        raise ModelLoadError(
            f"the rotary table of {max_model_len} positions takes {format_bytes(num_bytes)}, and "
            f"{format_bytes(available)} are available; set a max_model_len below config.json's "
            f"max_position_embeddings ({config.max_position_embeddings})"
        )


def _fill(rows: Tensor, first: int, inv_freq: Tensor, scale: float) -> None:
    """Write the rows of the positions from `first` on. Slab by slab, it needs no memory but the table's."""
    angles = torch.outer(torch.arange(first, first + len(rows), dtype=torch.float32, device="cpu"), inv_freq)
    cosines, sines = rows.chunk(2, dim=-1)
    num_turned = len(inv_freq)
    torch.mul(angles.cos(), scale, out=cosines[:, :num_turned])
    torch.mul(angles.sin(), scale, out=sines[:, :num_turned])
    cosines[:, num_turned:], sines[:, num_turned:] = 1.0, 0.0


def rotary_frequencies(config: ModelConfig, rope: RopeConfig, max_model_len: int) -> tuple[Tensor, float]:
    """The frequencies of the pairs that turn, in radians per token, float32, and the factor on cos and sin."""
    dim = rope.rotary_dim(config.head_dim)
    if dim % 2:
        factor = rope.partial_rotary_factor
        raise ModelLoadError(
            f"config.json: partial_rotary_factor {factor} makes {dim} elements turn, which are no pairs"
        )
    if rope.rope_type == "proportional":
        num_turned = int(rope.partial_rotary_factor * dim // 2)
        return _plain(rope.rope_theta, dim)[:num_turned] / rope.factor, 1.0
    if rope.rope_type == "linear":
        return _plain(rope.rope_theta, dim) / rope.factor, 1.0
    if rope.rope_type == "dynamic":
        return _plain(_dynamic_theta(config, rope, max_model_len), dim), 1.0
    if rope.rope_type == "ntk":
        return _plain(rope.rope_theta * rope.factor, dim) / rope.factor ** (2 / dim), 1.0
    if rope.rope_type == "llama3":
        return _llama3(config, rope), 1.0
    if rope.rope_type == "longrope":
        return _longrope(config, rope, max_model_len), _longrope_attention_factor(rope)
    if rope.rope_type == "yarn":
        return _yarn(config, rope), _yarn_attention_factor(rope)
    return _plain(rope.rope_theta, dim), 1.0


def _plain(theta: float, head_dim: int) -> Tensor:
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32, device="cpu") / head_dim
    return 1.0 / theta**exponents


def _dynamic_theta(config: ModelConfig, rope: RopeConfig, max_model_len: int) -> float:
    # The formula uses the current length, so every key would have to be rotated again whenever its sequence grows.
    # But a cache holds keys that are rotated once, and shares them between sequences of different lengths. So theta is
    # fixed for the longest sequence that this engine accepts. Within the trained length nothing changes; beyond it the
    # results equal those of a sequence of `max_model_len` tokens at every position.
    factor, trained_len, dim = rope.factor, config.max_position_embeddings, rope.rotary_dim(config.head_dim)
    if dim == 2:
        raise ModelLoadError("config.json: rope_type 'dynamic' needs a head_dim above 2")
    stretch = factor * max(max_model_len, trained_len) / trained_len - (factor - 1)
    return rope.rope_theta * stretch ** (dim / (dim - 2))


def _llama3(config: ModelConfig, rope: RopeConfig) -> Tensor:
    trained_len = rope.original_max_position_embeddings or config.max_position_embeddings
    inv_freq = _plain(rope.rope_theta, rope.rotary_dim(config.head_dim))
    # Rotations within the trained length: up to `low` they are stretched in full, from `high` on not at all. Llama 4
    # has no
    # ramp.
    turns, ramp = trained_len * inv_freq / (2 * math.pi), rope.high_freq_factor - rope.low_freq_factor
    above = turns - rope.low_freq_factor
    keep = (above / ramp).clamp(0, 1) if ramp else (above >= 0).float()
    return inv_freq * keep + inv_freq / rope.factor * (1 - keep)


def _longrope(config: ModelConfig, rope: RopeConfig, max_model_len: int) -> Tensor:
    # By the formula the long factors apply once the current length exceeds the trained one. As with `dynamic`, keys are
    # rotated
    # once, so the longest sequence that this engine accepts decides.
    assert rope.original_max_position_embeddings is not None, "read_rope has filled it"
    is_long = max_model_len > rope.original_max_position_embeddings
    factors = rope.long_factor if is_long else rope.short_factor
    dim = rope.rotary_dim(config.head_dim)
    if len(factors) != dim // 2:
        raise ModelLoadError(
            f"config.json: {'long' if is_long else 'short'}_factor has {len(factors)} numbers for {dim // 2} pairs"
        )
    return _plain(rope.rope_theta, dim) / torch.tensor(factors, dtype=torch.float32, device="cpu")


def _longrope_attention_factor(rope: RopeConfig) -> float:
    assert rope.original_max_position_embeddings is not None, "read_rope has filled it"
    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.factor <= 1:
        return 1.0
    return math.sqrt(1 + math.log(rope.factor) / math.log(max(rope.original_max_position_embeddings, 2)))


def _yarn(config: ModelConfig, rope: RopeConfig) -> Tensor:
    dim = rope.rotary_dim(config.head_dim)
    trained_len = rope.original_max_position_embeddings or config.max_position_embeddings

    def pair_with(turns: float) -> float:  # the (fractional) pair that makes so many turns within the trained length
        return dim * math.log(trained_len / (turns * 2 * math.pi)) / (2 * math.log(rope.rope_theta))

    low, high = pair_with(rope.beta_fast), pair_with(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001
    stretched = ((torch.arange(dim // 2, dtype=torch.float32, device="cpu") - low) / (high - low)).clamp(0, 1)
    inv_freq = _plain(rope.rope_theta, dim)
    return inv_freq * (1 - stretched) + inv_freq / rope.factor * stretched


def _yarn_attention_factor(rope: RopeConfig) -> float:
    def mscale(weight: float) -> float:
        return 1.0 if rope.factor <= 1 else 0.1 * weight * math.log(rope.factor) + 1.0

    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.mscale and rope.mscale_all_dim:
        return mscale(rope.mscale) / mscale(rope.mscale_all_dim)
    return mscale(1.0)
