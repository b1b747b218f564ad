"""The methods of `quantization_config`: those that are read, and advice about the others."""

from collections.abc import Callable, Mapping

from lullm.config.encoding.bitsandbytes import read_bitsandbytes
from lullm.config.encoding.compressed_tensors import read_compressed_tensors
from lullm.config.encoding.float8 import read_float8
from lullm.config.encoding.hqq import read_hqq
from lullm.config.encoding.keys import check_known, choice, fault, module_names
from lullm.config.encoding.mlx import read_mlx
from lullm.config.encoding.modelopt import read_modelopt
from lullm.config.encoding.packed import read_auto_round, read_awq, read_gptq
from lullm.config.encoding.quark import read_quark
from lullm.config.encoding.scheme import EVERYTHING, CheckpointEncoding, IntegerScheme, NativeScheme, Targets
from lullm.config.encoding.torchao import read_torchao
from lullm.config.field import Data, shown


def read_native(data: Data) -> CheckpointEncoding:
    """The 4-bit files of `lullm quantize`: `int8_modules` hold bytes, all others digits."""
    check_known(data, ("bits", "int8_modules"), (), ())
    choice(data, "version", (1,), None)
    choice(data, "bits", (4,), None)
    by_bytes = Targets(frozenset(module_names(data, "int8_modules")))
    plain = IntegerScheme(8, None, is_symmetric=True, packing="plain")
    return CheckpointEncoding("lullm", ((EVERYTHING, NativeScheme()), (by_bytes, plain)))


METHODS: Mapping[str, Callable[[Data], CheckpointEncoding | None]] = {
    "auto-round": read_auto_round,
    "awq": read_awq,
    "bitsandbytes": read_bitsandbytes,
    "compressed-tensors": read_compressed_tensors,
    "fbgemm_fp8": read_float8,
    "fp8": read_float8,
    "gptq": read_gptq,
    "hqq": read_hqq,
    "intel/auto-round": read_auto_round,
    "lullm": read_native,
    "mlx": read_mlx,
    "modelopt": read_modelopt,
    "modelopt_fp4": read_modelopt,
    "quark": read_quark,
    "torchao": read_torchao,
}
_ORIGINAL = "take the original in bfloat16, with quantization='int8' or 'int4' if memory is short"
_OTHERS: Mapping[str, str] = {
    "eetq": _ORIGINAL,
    "quanto": _ORIGINAL,
    "gguf": "take the folder that the file was made from",
}


def read_encoding(value: object, own_methods: frozenset[str]) -> CheckpointEncoding | None:
    """Read `quantization_config`; None: nothing is quantized, or by the family's own method (`own_methods`).

    Raises:
        ModelLoadError: a method or a key is not supported; the error names it with advice.
    """
    if not value:
        return None
    method = value.get("quant_method") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(method, str):
        raise fault(f"quant_method must name the method by which the weights are quantized, not {shown(method)}")
    if method in own_methods:
        return None
    if own_methods or method not in METHODS:
        supported = ", ".join(sorted(own_methods or METHODS))
        advice = _OTHERS.get(method, _ORIGINAL)
        raise fault(f"quant_method {shown(method)} is not supported for this architecture, only {supported}; {advice}")
    return METHODS[method](value)
