"""What families compute differently, by name: the activation of an MLP, features of attention."""

from typing import Literal

Activation = Literal["silu", "gelu", "gelu_tanh", "relu"]
"""`gelu`: by the error function. `gelu_tanh`: its approximation (both https://arxiv.org/abs/1606.08415)."""

AttentionFeature = Literal["soft_cap", "sinks"]
"""What attention may do beside plain scores; see `Ops.attention`."""
