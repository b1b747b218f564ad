"""compressed-tensors (https://github.com/vllm-project/compressed-tensors): integers and fp8, by groups of modules."""

from typing import Any

from lullm.config.encoding.keys import check_known, choice, fault, group_size, module_names, targets
from lullm.config.encoding.scheme import CheckpointEncoding, Float4Scheme, Float8Scheme, IntegerScheme, Scheme
from lullm.config.field import Data, shown

_READS = ("config_groups", "format", "ignore", "kv_cache_scheme")
_IGNORES = ("quantization_status", "global_compression_ratio", "run_compressed")
_REFUSES = ("transform_config", "moe_sparsity_config")
_WEIGHTS = ("num_bits", "type", "symmetric", "strategy", "group_size", "block_structure", "actorder", "dynamic")
_OF_TOOLS = ("observer", "observer_kwargs", "scale_dtype", "zp_dtype")
_FLOAT8_FORMATS = ("float-quantized", "naive-quantized", "mxfp8-quantized")
_FLOAT4_SIZES = {"nvfp4-pack-quantized": 16, "mxfp4-pack-quantized": 32}
_FORMATS = ("pack-quantized", "int-quantized", *_FLOAT8_FORMATS, *_FLOAT4_SIZES)
_CLASSES = ("Linear", "Embedding")


def read_compressed_tensors(data: Data) -> CheckpointEncoding | None:
    """Read the config. Activations are not quantized: a group's `input_activations` saves time elsewhere, and rounds
    more.

    Returns:
        None: nothing is quantized, except optionally the KV cache to fp8, for which the checkpoint adds scales.
    """
    check_known(data, (*_READS, "sparsity_config", "lullm"), _IGNORES, _REFUSES)
    _check_sparsity(data.get("sparsity_config"))
    _check_kv_scheme(data.get("kv_cache_scheme"))
    found = data.get("config_groups") or {}
    if not isinstance(found, dict) or not all(isinstance(group, dict) for group in found.values()):
        raise fault(f"config_groups must map names to groups with targets and weights, not {shown(found)}")
    if not found:
        if not data.get("kv_cache_scheme"):
            raise fault("config_groups is empty: nothing says how the weights are quantized")
        return None
    groups = []
    for name, group in found.items():
        check_known(group, ("targets", "weights", "format"), ("input_activations",), ("output_activations",))
        named = module_names(group, "targets")
        if wrong := [each for each in named if each[:1].isupper() and each not in _CLASSES]:
            raise fault(f"{name} targets modules of the class {shown(wrong[0])}; supported: {', '.join(_CLASSES)}")
        if group.get("weights") is not None:
            groups.append((targets(named, f"{name}.targets"), _scheme(group, data.get("format"))))
    ignored = targets(module_names(data, "ignore"), "ignore")
    quantization = choice(data, "lullm", (None, "int8"), None)
    return CheckpointEncoding("compressed-tensors", tuple(groups), ignored, quantization)


def _scheme(group: Data, common_format: object) -> Scheme:
    weights = group["weights"]
    if not isinstance(weights, dict):
        raise fault(f"weights of a group must be an object, not {shown(weights)}")
    check_known(weights, _WEIGHTS, _OF_TOOLS, ())
    stored = choice({"format": group.get("format") or common_format}, "format", _FORMATS, None)
    choice(weights, "dynamic", (False,), False)
    kind = choice(weights, "type", ("int", "float"), "int")
    default = "tensor" if weights.get("group_size") is None else "channel" if group_size(weights) is None else "group"
    strategy = choice(weights, "strategy", ("tensor", "channel", "group", "tensor_group", "block"), default)
    if stored in _FLOAT4_SIZES:
        return _float4(weights, kind, stored)
    if kind == "float":
        return _float8(weights, stored, strategy)
    if stored in _FLOAT8_FORMATS[::2] or strategy in ("block", "tensor_group"):
        raise fault(f"integers in the format {stored!r} with the strategy {strategy!r} are not supported")
    is_packed = stored == "pack-quantized"
    bits = choice(weights, "num_bits", (4, 8), 8)
    size = group_size(weights)
    if (strategy == "group") != (size is not None):
        raise fault(f"strategy {strategy!r} and group_size {shown(weights.get('group_size'))} contradict each other")
    order = choice(weights, "actorder", (None, False, "weight", "static", "group", "dynamic"), None)
    return IntegerScheme(
        bits,
        size,
        is_symmetric=choice(weights, "symmetric", (True, False), True),
        packing="rows" if is_packed else "plain",
        has_order=order in ("group", "dynamic"),
    )


def _float4(weights: Data, kind: str, stored: str) -> Float4Scheme:
    choice(weights, "num_bits", (4,), 4)
    choice(weights, "symmetric", (True,), True)
    size = _FLOAT4_SIZES[stored]
    if kind != "float" or group_size(weights) != size:
        raise fault(f"the format {stored!r} holds numbers of the type 'float' in groups of {size} only")
    return Float4Scheme(16 if size == 16 else 32)


def _float8(weights: Data, stored: str, strategy: str) -> Float8Scheme:
    choice(weights, "num_bits", (8,), 8)
    choice(weights, "symmetric", (True,), True)
    if stored not in _FLOAT8_FORMATS or strategy == "tensor_group":
        raise fault(f"floating point weights in the format {stored!r} are not supported")
    if strategy == "block":
        return Float8Scheme(block_size(weights.get("block_structure"), "block_structure"))
    if strategy == "group":
        size = group_size(weights)
        if size is None:
            raise fault("strategy 'group' needs a group_size")
        return Float8Scheme((1, size))
    return Float8Scheme()


def block_size(value: Any, name: str) -> tuple[int, int]:
    """(outputs, inputs) of a block, as `[128, 128]`."""
    is_pair = isinstance(value, list) and len(value) == 2
    if not is_pair or not all(isinstance(n, int) and not isinstance(n, bool) and 0 < n <= 1 << 20 for n in value):
        raise fault(f"{name} must be two positive integers, not {shown(value)}")
    return value[0], value[1]


def _check_sparsity(value: object) -> None:
    if value and not (isinstance(value, dict) and value.get("format") == "dense"):
        raise fault(f"sparsity_config {shown(value)}: sparse weights are not supported; take a dense checkpoint")


def _check_kv_scheme(value: object) -> None:
    if not value:
        return
    kind = isinstance(value, dict) and (
        value.get("type"), value.get("num_bits"), value.get("symmetric", True), value.get("dynamic", False)
    )  # fmt: skip
    if kind != ("float", 8, True, False):
        raise fault(f"kv_cache_scheme {shown(value)} is not supported; only fp8 with scales in the checkpoint is")
