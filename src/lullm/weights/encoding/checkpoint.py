"""A `quantization_config` as rules for a checkpoint's tensors: which are joined, and which are dropped."""

import re
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from lullm.config.encoding.scheme import CheckpointEncoding, Float4Scheme, Float8Scheme, IntegerScheme, TableScheme
from lullm.errors import ModelLoadError
from lullm.weights.encoding.affine import SUFFIXES as MLX_SUFFIXES
from lullm.weights.encoding.affine import encode_mlx
from lullm.weights.encoding.digits import SUFFIXES as DIGIT_SUFFIXES
from lullm.weights.encoding.digits import encode_digits
from lullm.weights.encoding.encoded import EncodedTensor
from lullm.weights.encoding.float4 import encode_float4
from lullm.weights.encoding.float8 import encode_float8
from lullm.weights.encoding.joining import Join
from lullm.weights.encoding.lookup import ROW_SCALES, encode_lookup, with_row_scales
from lullm.weights.encoding.lookup import SUFFIXES as LOOKUP_SUFFIXES
from lullm.weights.encoding.packed import HQQ_SUFFIXES, encode_integers
from lullm.weights.rule import Rename, Stack, WeightRules

_SUFFIXES = (
    *DIGIT_SUFFIXES, *LOOKUP_SUFFIXES, ".weight", ".weight_scale_inv", ".weight_packed", ".weight_shape",
    ".weight_zero_point", ".weight_g_idx",
    ".weight_global_scale", ".weight_scale_2", ".qweight", ".qzeros", ".scales", ".g_idx",
)  # fmt: skip
_OTHER_NAMES = {
    "._weight_qdata": ".weight", "._weight_scale": ".weight_scale", "._weight_zero_point": ".weight_zero_point",
}  # fmt: skip
"""torchao's names of parts, and the common names."""
_AWQ_NAMES = {".weight": ".qweight", ".weight_scale": ".scales", ".weight_zero_point": ".qzeros"}
"""AWQ's names of parts, for Quark."""
_STACKED_BY_MLX = Rename(re.compile(r"\.switch_mlp\."), ".experts.")
_MLX_STACKS = tuple(
    Stack("experts", part, (part,), or_apart=True)
    for part in ("gate_proj.weight", "up_proj.weight", "down_proj.weight")
)
OF_ACTIVATIONS = re.compile(r"\.(input_scale|input_zero_point|input_global_scale|activation_scale)$")
"""Tensors for the rounding of activations to 8 bits, which lullm does not do."""
_LONGEST_NAME = 500


def with_encoding(rules: WeightRules, encoding: CheckpointEncoding) -> WeightRules:
    """The rules of a family for a checkpoint of this encoding.

    Raises:
        ModelLoadError: no quantized checkpoint stores matrices in the family's way.
    """
    if rules.transposes:
        raise ModelLoadError(
            f"config.json: quantization_config: {encoding.method} is not supported for this architecture, whose files "
            "hold matrices as [in, out]; take the original, with quantization='int8' or 'int4'"
        )

    # Tools that quantize experts store each of them apart; experts in 16 bits may be stacked all the same.
    rules = replace(rules, stacks=tuple(replace(stack, or_apart=True) for stack in rules.stacks))

    def encode(name: str, parts: Mapping[str, Tensor]) -> EncodedTensor:
        scheme = encoding.scheme_of(name.removesuffix(".weight")) if len(name) <= _LONGEST_NAME else None
        if scheme is None:
            raise ModelLoadError(
                f"{name} is stored quantized, and config.json's quantization_config says that it is not; "
                "fetch the checkpoint again"
            )
        if encoding.method == "mlx":
            return encode_mlx(name, parts, scheme)
        parts = {_OTHER_NAMES.get(suffix, suffix): part for suffix, part in parts.items()}
        if encoding.method == "torchao" and ".weight_scale" in parts:  # of older files symmetric ones lack them
            parts.setdefault(".weight_zero_point", torch.zeros_like(parts[".weight_scale"], dtype=torch.int8))
        if isinstance(scheme, IntegerScheme) and scheme.packing == "awq":
            parts = {_AWQ_NAMES.get(suffix, suffix): part for suffix, part in parts.items()}
        if isinstance(scheme, IntegerScheme):
            return encode_integers(name, with_row_scales(name, parts) if ROW_SCALES in parts else parts, scheme)
        if isinstance(scheme, Float4Scheme):
            return encode_float4(name, parts, scheme)
        if isinstance(scheme, TableScheme):
            return encode_lookup(name, parts)
        return encode_float8(name, parts, scheme) if isinstance(scheme, Float8Scheme) else encode_digits(name, parts)

    if encoding.method == "mlx":
        rules = replace(rules, renames=(_STACKED_BY_MLX, *rules.renames), stacks=(*rules.stacks, *_MLX_STACKS))
    suffixes = (*_SUFFIXES, *_OTHER_NAMES, *(HQQ_SUFFIXES if encoding.method == "hqq" else ()))
    join = Join(MLX_SUFFIXES if encoding.method == "mlx" else suffixes, encode, ".weight")
    return replace(rules, joins=(*rules.joins, join), drops=(*rules.drops, OF_ACTIVATIONS))
