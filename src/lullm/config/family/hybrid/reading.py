"""What hybrids' config.json files say about recurrent layers: state spaces (Mamba 2) under the names of each family."""

import math
from dataclasses import dataclass
from typing import Any

from lullm.config.field import (
    LARGEST_ID,
    MOST_HEAD_DIM,
    MOST_HEADS,
    MOST_HIDDEN,
    Data,
    boolean,
    positive_float,
    positive_int,
    shown,
)
from lullm.config.layer.recurrent import StateSpaceConfig
from lullm.errors import ModelLoadError

MOST_KERNEL = 1 << 8
MOST_EXPAND = 1 << 8
"""Largest `expand`; in released models it is 2."""
_FLOAT_TAG = "__float__"
"""transformers writes infinity as an object with this key."""


def only_silu(data: Data, name: str) -> None:
    """Raises ModelLoadError: convolutions have another activation."""
    if data.get(name, "silu") not in ("silu", "swish"):
        raise ModelLoadError(f"config.json: {name} {shown(data[name])} is not supported in recurrent layers, only silu")


@dataclass(frozen=True, slots=True)
class StateSpaceKeys:
    """The names of the keys that say how large state spaces are.

    Args:
        head_dim: missing or "auto": the heads share the inner size.
        bias: of the matrices before and behind the state space.
        expand: the inner size is so many times `hidden_size`; None: it is what the heads have.
        inner_size: says it by itself; where this key is missing, `expand` counts.
        convolution_bias: None: there is always one.
        least_step: the lower bound of step sizes, without an upper one; None: `time_step_limit` has both.
    """

    num_heads: str
    head_dim: str
    num_groups: str
    state_size: str
    kernel_size: str
    bias: str
    expand: str | None = None
    inner_size: str | None = None
    convolution_bias: str | None = None
    least_step: str | None = None

    def read(self, data: Data) -> StateSpaceConfig:
        """Raises ModelLoadError: a value is wrong, or does not fit another one."""
        num_heads = positive_int(data, self.num_heads, most=MOST_HEADS)
        num_groups = positive_int(data, self.num_groups, most=MOST_HEADS)
        if num_heads % num_groups:
            raise ModelLoadError(
                f"config.json: {self.num_heads} ({num_heads}) must be a multiple of {self.num_groups} ({num_groups})"
            )
        has_bias = boolean(data, self.bias, False)
        least, most = self._step_bounds(data)
        return StateSpaceConfig(
            num_heads=num_heads,
            head_dim=self._head_dim(data, num_heads),
            num_groups=num_groups,
            state_size=positive_int(data, self.state_size, most=MOST_HEAD_DIM),
            kernel_size=positive_int(data, self.kernel_size, most=MOST_KERNEL),
            convolution_bias=self.convolution_bias is None or boolean(data, self.convolution_bias, True),
            projection_bias=has_bias,
            output_bias=has_bias,
            least_step=least,
            most_step=most,
        )

    def _head_dim(self, data: Data, num_heads: int) -> int:
        if self.expand is None:
            return positive_int(data, self.head_dim, most=MOST_HEAD_DIM)
        size, source = expanded_size(data, self.expand), f"{self.expand} times hidden_size"
        if self.inner_size is not None:
            size, source = positive_int(data, self.inner_size, size), f"{self.inner_size} or {source}"
        stated = data.get(self.head_dim, "auto")
        head_dim = size // num_heads if stated in (None, "auto") else positive_int(data, self.head_dim)
        if num_heads * head_dim != size or head_dim > MOST_HEAD_DIM:
            raise ModelLoadError(
                f"config.json: {self.num_heads} ({num_heads}) heads of {self.head_dim} ({shown(stated)}) must have "
                f"{size} elements, which is {source}, each up to {MOST_HEAD_DIM}"
            )
        return head_dim

    def _step_bounds(self, data: Data) -> tuple[float, float]:
        if self.least_step is not None:
            return positive_float(data, self.least_step, 0.001), math.inf
        stated = data.get("time_step_limit")
        if stated is None:
            return 0.0, math.inf
        bounds = [_number(value) for value in stated] if isinstance(stated, list) else []
        if len(bounds) != 2 or not 0 <= bounds[0] <= bounds[1]:
            raise ModelLoadError(
                f"config.json: time_step_limit must be two numbers from 0 on, the least first, not {shown(stated)}"
            )
        return bounds[0], bounds[1]


def expanded_size(data: Data, name: str) -> int:
    """`hidden_size`, so many times. Raises ModelLoadError."""
    return positive_int(data, name, most=MOST_EXPAND) * positive_int(data, "hidden_size", most=MOST_HIDDEN)


def _number(value: Any) -> float:
    """NaN, which is within no bounds: it is none, or an integer that no float holds."""
    if isinstance(value, dict) and value.get(_FLOAT_TAG) in ("Infinity", math.inf):
        return math.inf
    if isinstance(value, float) or (type(value) is int and value <= LARGEST_ID):
        return float(value)
    return math.nan
