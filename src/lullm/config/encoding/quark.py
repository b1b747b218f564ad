"""Quark (https://quark.docs.amd.com) as AMD releases it: FP8, bytes, MXFP4, and 4 bits in the layout of AWQ."""

from typing import Any

from lullm.config.encoding.compressed_tensors import block_size
from lullm.config.encoding.keys import check_known, choice, fault, group_size, module_names, obj, wildcards
from lullm.config.encoding.scheme import (
    EVERYTHING,
    CheckpointEncoding,
    Float4Scheme,
    Float8Scheme,
    IntegerScheme,
    Scheme,
    Targets,
)
from lullm.config.field import Data, shown

_IGNORES = (
    "algo_config", "quant_mode", "kv_cache_quant_config", "kv_cache_post_rope", "min_kv_scale", "softmax_quant_spec",
    "log_severity_level",
)  # fmt: skip
_OF_TENSORS = ("input_tensors", "output_tensors", "bias", "target_device")
_OF_ROUNDING = (
    "observer_cls", "round_method", "scale_type", "is_dynamic", "qat_spec", "is_scale_quant", "mx_element_dtype",
    "scale_calculation_mode", "zero_point_type",
)  # fmt: skip


def read_quark(data: Data) -> CheckpointEncoding:
    """Read the config. Layers with other schemes than the global one are named. Activations are not quantized."""
    reads = ("global_quant_config", "layer_quant_config", "exclude", "export")
    check_known(data, reads, _IGNORES, ("layer_type_quant_config", "rotation"))
    export = obj(data.get("export") or {}, "export")
    choice(export, "pack_method", ("reorder",), "reorder")
    choice(export, "weight_format", ("real_quantized",), "real_quantized")
    layers = obj(data.get("layer_quant_config") or {}, "layer_quant_config")
    groups: list[tuple[Targets, Scheme]] = []
    left = wildcards(module_names(data, "exclude"), "exclude")
    for name, stated in layers.items():
        scheme = _scheme(stated, name)
        if scheme is None:
            raise fault(f"layer_quant_config: {shown(name)} has no weight; name it in exclude")
        groups.append((wildcards((name,), "layer_quant_config"), scheme))
    scheme = _scheme(data.get("global_quant_config"), "global_quant_config")
    if scheme is None:
        raise fault("global_quant_config says no weight")
    return CheckpointEncoding("quark", (*groups, (EVERYTHING, scheme)), left)


def _scheme(config: Any, name: str) -> Scheme | None:
    """The scheme of one layer; None: its weights are not quantized."""
    config = obj(config, name)
    check_known(config, ("weight",), _OF_TENSORS, ())
    if config.get("weight") is None:
        return None
    weight = obj(config["weight"], f"{name}: weight")
    reads = ("dtype", "qscheme", "group_size", "block_size", "symmetric", "scale_format", "ch_axis")
    check_known(weight, reads, _OF_ROUNDING, ())
    kind = choice(weight, "dtype", ("fp8_e4m3", "int8", "fp4", "uint4", "int4"), None)
    allowed = {"fp8_e4m3": ("per_tensor", "per_channel", "per_block"), "int8": ("per_tensor", "per_channel")}
    by = choice(weight, "qscheme", allowed.get(kind, ("per_group",)), None)
    choice(weight, "ch_axis", (0,) if by == "per_channel" else (0, 1, -1), 0)
    is_symmetric = choice(weight, "symmetric", (True, False), True)
    if kind == "fp8_e4m3":
        return Float8Scheme(block_size(weight.get("block_size"), "block_size") if by == "per_block" else None)
    if kind == "int8":
        return IntegerScheme(8, None, is_symmetric, packing="plain")
    if kind == "fp4":
        choice(weight, "group_size", (32,), None)
        choice(weight, "scale_format", ("e8m0",), None)
        return Float4Scheme(32)
    if is_symmetric != (kind == "int4"):
        raise fault(f"{name}: weight: {kind} with symmetric {is_symmetric} is not supported")
    return IntegerScheme(4, group_size(weight), is_symmetric, packing="awq")
