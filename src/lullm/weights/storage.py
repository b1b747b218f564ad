"""The storage of a model's matrices in memory: chosen by an engine, or predicted from a `config.json` alone."""

from pathlib import Path

from lullm.config.encoding.scheme import (
    EVERYTHING,
    AffineScheme,
    CheckpointEncoding,
    Float4Scheme,
    Float8Scheme,
    NativeScheme,
    Scheme,
    TableScheme,
)
from lullm.nn.embedding import Embedding, LMHead
from lullm.ops.quantized.narrow import BLOCK_INPUTS, narrow_format
from lullm.weights.encoding.affine import affine_formats
from lullm.weights.encoding.checkpoint import with_encoding
from lullm.weights.encoding.float4 import float4_formats
from lullm.weights.encoding.float8 import float8_formats
from lullm.weights.encoding.integer import integer_formats
from lullm.weights.quantization import keep_formats, matrices, quantize_model, tensors_of
from lullm.weights.reading.source import open_source
from lullm.weights.target import Loadable


def choose_storage(
    model: Loadable, encoding: CheckpointEncoding | None, quantization: str | None, files: Path | None
) -> int:
    """Choose the storage of a meta model's matrices. Returns the number of those that keep the checkpoint's numbers.

    Args:
        quantization: 'int8' or 'int4'; None: matrices keep the numbers of `files`.
        files: the checkpoint, a folder or a GGUF file; None: all matrices have the model's type.
    """
    if encoding is not None:
        model.rules = with_encoding(model.rules, encoding)
    if quantization is not None:
        quantize_model(model, quantization)
        return 0
    if files is None:
        return 0
    source = open_source(files)
    rules = source.rules(model.rules)
    return keep_formats(model, rules, source.formats(rules))


def foretell_storage(model: Loadable, encoding: CheckpointEncoding | None, own_encoding: str | None) -> int:
    """As `choose_storage` for files that are not here, if they have the usual scales.

    Args:
        own_encoding: the family's own method, which quantizes only the experts.
    """
    formats: dict[str, tuple[int, ...]] = {}
    for name, module in matrices(model):
        num_inputs = module.weight.shape[1]
        for whole in tensors_of(model.rules, name, module):
            if own_encoding == "mxfp4" and ".experts." in name and num_inputs % BLOCK_INPUTS == 0:
                formats[whole] = (narrow_format(True, BLOCK_INPUTS),)
            elif encoding is not None:
                is_outer = isinstance(module, Embedding | LMHead)
                scheme = _scheme_of(encoding, whole.removesuffix(".weight"), is_outer)
                formats[whole] = _formats(scheme, num_inputs)
    return keep_formats(model, model.rules, formats)


def _scheme_of(encoding: CheckpointEncoding, module: str, is_outer: bool) -> Scheme | None:
    """The scheme of a module. Few methods that name no modules quantize embedding and head."""
    scheme = encoding.scheme_of(module)
    of_all = any(targets is EVERYTHING and scheme is own for targets, own in encoding.groups)
    return None if is_outer and of_all and encoding.method not in ("lullm", "mlx") else scheme


def _formats(scheme: Scheme | None, num_inputs: int) -> tuple[int, ...]:
    """Formats that hold a matrix of this scheme exactly, the smallest first."""
    if scheme is None or isinstance(scheme, TableScheme):
        return ()
    if isinstance(scheme, Float4Scheme):
        return float4_formats(scheme, num_inputs)
    if isinstance(scheme, Float8Scheme):
        return float8_formats(num_inputs, None if scheme.block is None else scheme.block[1])
    if isinstance(scheme, NativeScheme):
        return 4, 8
    if isinstance(scheme, AffineScheme):
        return affine_formats(scheme.bits)
    bits = 8 if scheme.packing == "plain" else scheme.bits
    size = num_inputs if scheme.group_size is None else scheme.group_size
    is_whole = num_inputs % size == 0 and not scheme.has_order and scheme.packing != "hqq"  # zero points of no digit
    return integer_formats(bits, scheme.is_symmetric, num_inputs, num_inputs // size) if is_whole else ()
