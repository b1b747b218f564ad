"""Which matrices of a model are quantized, and to how many bits.

Linear layers take the chosen format. The embedding and the head, often one matrix, always take 8 bits: all logits
depend on it, and 4 bits there cost more accuracy than 4 bits in all layers. Norms, biases and the gates of experts
are not quantized.

A checkpoint that is quantized already keeps its own integers, in those matrices whose integers a native format holds.
"""

from collections.abc import Iterable, Iterator
from typing import Literal

from lullm.config.encoding.scheme import CheckpointEncoding
from lullm.nn.embedding import Embedding, LMHead
from lullm.nn.experts import Gate
from lullm.nn.linear import FusedLinear, Matrix
from lullm.weights.encoding.joining import Joining
from lullm.weights.target import Loadable

BITS: dict[str, Literal[8, 4]] = {"int8": 8, "int4": 4}
"""By the values of `EngineConfig.quantization`."""


def quantize_model(model: Loadable, quantization: str) -> None:
    """Give every matrix of a meta model storage of 'int8' or 'int4'. `QuantizedRows` fills it later."""
    for _, module in _matrices(model):
        module.quantize(8 if isinstance(module, Embedding | LMHead) else BITS[quantization])


def quantize_as_stored(model: Loadable, encoding: CheckpointEncoding, names: Iterable[str]) -> int:
    """Give matrices of a meta model the storage that holds exactly what the checkpoint's tensors (`names`) hold.

    A fused matrix gets one where all its parts fit the same. Returns the number of matrices; the others are decoded.
    """
    schemes = {}
    for whole in Joining(model.rules.joins, names).wholes:
        schemes[model.rules.canonical_name(whole)] = encoding.scheme_of(whole.removesuffix(".weight"))
    num_quantized = 0
    for name, module in _matrices(model):
        prefix, _, last = name.rpartition(".")
        parts = model.rules.parts_of(last) if isinstance(module, FusedLinear) else None
        wholes = [f"{name}.weight"] if parts is None else [f"{prefix}.{part}.weight" for part in parts]
        found = {None if scheme is None else scheme.native_bits for scheme in map(schemes.get, wholes)}
        bits = found.pop()
        if not found and bits is not None:
            module.quantize(bits)
            num_quantized += 1
    return num_quantized


def _matrices(model: Loadable) -> Iterator[tuple[str, Matrix]]:
    for name, module in model.named_modules():
        if isinstance(module, Matrix) and module.weight is not None and not isinstance(module, Gate):
            yield name, module
