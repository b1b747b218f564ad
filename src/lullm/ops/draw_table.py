"""DrawTable: what a device needs to draw one token per row, as tensors: the parameters, and the randomness."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class DrawTable:
    """N rows, each in its own tensors so that a graph's can be filled in place. All stand on the logits' device.

    Args:
        temperatures: `[N]` float32; 0: greedy, and nothing else of the row counts.
        top_k: `[N]` int32 in 1..V; V keeps all.
        top_p: `[N]` float64 in (0, 1]; 1 keeps all.
        min_p_floors: `[N]` float32: log(min_p), -inf for none.
        uniforms: `[N]` float64 in (0, 1), as `worker.randomness.uniforms_of` gives them.
    """

    temperatures: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p_floors: Tensor
    uniforms: Tensor
