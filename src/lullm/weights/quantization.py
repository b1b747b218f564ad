"""Which matrices of a model are quantized, and to how many bits.

Linear layers take the chosen format. The embedding and the head, often one matrix, always take 8 bits: all logits
depend on it, and 4 bits there cost more accuracy than 4 bits in all layers. Norms, biases and the gates of experts
are not quantized.
"""

from typing import Literal

from torch import nn

from lullm.nn.embedding import Embedding, LMHead
from lullm.nn.experts import Gate
from lullm.nn.linear import Matrix

BITS: dict[str, Literal[8, 4]] = {"int8": 8, "int4": 4}
"""By the values of `EngineConfig.quantization`."""


def quantize_model(model: nn.Module, quantization: str) -> None:
    """Give every matrix of a meta model storage of 'int8' or 'int4'. `QuantizedRows` fills it later."""
    for module in model.modules():
        if isinstance(module, Matrix) and module.weight is not None and not isinstance(module, Gate):
            module.quantize(8 if isinstance(module, Embedding | LMHead) else BITS[quantization])
