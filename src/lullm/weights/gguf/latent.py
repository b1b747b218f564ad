"""LatentParts: the matrix from latents to keys and values. Newer files of DeepSeek hold it as two tensors.

A file has for each head the keys' part transposed, `[H, rank, nope]`, and the values' part `[H, v, rank]`; a checkpoint
has both in one, head by head, `[H x (nope + v), rank]`.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from lullm.errors import ModelLoadError
from lullm.weights.gguf.tensor import GGUFTensor

KEY_PART, VALUE_PART = ".k_b_proj.weight", ".v_b_proj.weight"
_WHOLE = ".kv_b_proj.weight"


class LatentParts:
    """Collects the two parts of each layer."""

    def __init__(self) -> None:
        self._waiting: dict[str, tuple[str, GGUFTensor]] = {}  # by layer: the part that came first

    def add(self, name: str, part: GGUFTensor) -> Iterator[tuple[str, Tensor, int]]:
        """The whole matrix, if this part completes it. Raises ModelLoadError: the parts do not fit together."""
        prefix = name.removesuffix(KEY_PART).removesuffix(VALUE_PART)
        if prefix not in self._waiting:
            self._waiting[prefix] = name, part
            return
        parts = dict([self._waiting.pop(prefix), (name, part)])
        keys, values = parts[prefix + KEY_PART], parts[prefix + VALUE_PART]
        fits = len(keys.shape) == len(values.shape) == 3
        if not fits or keys.shape[:2] != (values.shape[0], values.shape[2]):
            raise ModelLoadError(f"{prefix}: attn_k_b {list(keys.shape)} and attn_v_b {list(values.shape)} do not fit")
        whole = torch.cat((keys.decode().mT, values.decode()), dim=1).flatten(0, 1)
        yield prefix + _WHOLE, whole, keys.raw.nbytes + values.raw.nbytes

    def finish(self) -> None:
        """Check that all are whole. Raises ModelLoadError: a layer has only one part."""
        for name, _ in self._waiting.values():
            other = VALUE_PART if name.endswith(KEY_PART) else KEY_PART
            missing = name.removesuffix(KEY_PART).removesuffix(VALUE_PART) + other
            raise ModelLoadError(f"missing tensor {missing}, the other part of {name}; fetch the file again")
