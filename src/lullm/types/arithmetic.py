"""Arithmetic in which families differ, by name: the activation of an MLP, features of attention."""

from typing import Literal

Activation = Literal["silu", "gelu", "gelu_tanh", "relu", "relu2"]
"""`gelu`: by the error function. `gelu_tanh`: its approximation (both https://arxiv.org/abs/1606.08415).
`relu2`: the square of `relu` (https://arxiv.org/abs/2109.08668)."""

Gating = Literal["silu", "sigmoid", "softplus"]
"""The function of a gate before it multiplies; see `Ops.multiply_`."""

QKNorm = Literal["heads", "bare_heads", "turned_heads", "rows"]
"""An RMSNorm on queries and keys before the rotation: on every head, by learned weights (`heads`) or without any
(`bare_heads`); or over all query heads of a row, and over all its key heads (`rows`). `turned_heads`: as `heads`, but
behind the rotation.
"""

AttentionFeature = Literal["soft_cap", "sinks", "latents"]
"""Features of attention beside plain scores; see `Ops.attention`. `latents`: all heads read one long row per token,
which is key and value (`Ops.attend_latents`).
"""
