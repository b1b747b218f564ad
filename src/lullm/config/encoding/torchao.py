"""torchao (https://github.com/pytorch/ao) in safetensors: bytes and FP8, by rows or groups."""

from typing import Any

from lullm.config.encoding.keys import check_known, choice, fault, group_size, module_names, obj
from lullm.config.encoding.scheme import EVERYTHING, CheckpointEncoding, Float8Scheme, IntegerScheme, Scheme, Targets
from lullm.config.field import Data, shown

_BYTES = ("Int8WeightOnlyConfig", "Int8DynamicActivationInt8WeightConfig")
_SMALL = ("IntxWeightOnlyConfig", "Int8DynamicActivationIntxWeightConfig")
_FLOATS = ("Float8WeightOnlyConfig", "Float8DynamicActivationFloat8WeightConfig")
_OF_ACTIVATIONS = (
    "act_mapping_type", "activation_dtype", "activation_value_lb", "activation_value_ub", "weight_only_decode",
    "mm_config", "kernel_preference", "packing_format", "set_inductor_config", "reduce_range", "layout",
)  # fmt: skip
_OF_ROUNDING = (
    "mapping_type", "weight_mapping_type", "scale_dtype", "weight_scale_dtype", "intx_choose_qparams_algorithm",
)  # fmt: skip


def read_torchao(data: Data) -> CheckpointEncoding:
    """Read the config. Activations are not quantized, nor are embedding and head, unless the file has them so."""
    reads = ("quant_type", "modules_to_not_convert")
    check_known(data, reads, ("include_input_output_embeddings", "untie_embedding_weights", "quant_type_kwargs"), ())
    stated = data.get("quant_type")
    if not isinstance(stated, dict) or list(stated) != ["default"] or not isinstance(stated["default"], dict):
        raise fault(f"quant_type must be an object with one config, 'default', not {shown(stated)}")
    left = Targets(parts=frozenset(module_names(data, "modules_to_not_convert")))
    return CheckpointEncoding("torchao", ((EVERYTHING, _scheme(stated["default"])),), left)


def _scheme(stated: Data) -> Scheme:
    kind = choice(stated, "_type", tuple(name.lower() for name in (*_BYTES, *_SMALL, *_FLOATS)), None)
    own = obj(stated.get("_data") or {}, "quant_type: _data")
    names = ("granularity", "weight_granularity")
    reads = (*names, "group_size", "weight_dtype", "intx_packing_format")
    check_known(own, reads, (*_OF_ACTIVATIONS, *_OF_ROUNDING), ())
    if kind in {name.lower() for name in _FLOATS}:
        if _named(own, "weight_dtype", "float8_e4m3fn") != "float8_e4m3fn":
            raise fault(f"quant_type: weight_dtype {shown(own['weight_dtype'])} is not supported, only float8_e4m3fn")
        return Float8Scheme()
    if _named(own, "intx_packing_format", "UNPACKED_TO_INT8") != "UNPACKED_TO_INT8":
        raise fault("quant_type: intx_packing_format must be UNPACKED_TO_INT8; files of others are for one processor")
    size = group_size(own)
    for granularity in (own.get(name) for name in names):
        if isinstance(granularity, dict) and granularity.get("_type") == "PerGroup":
            size = group_size(granularity.get("_data") or {})
    return IntegerScheme(8, size, is_symmetric=False, packing="plain")


def _named(data: Data, name: str, default: str) -> Any:
    """The NAME of an object `{"_type": ..., "_data": NAME}`."""
    value = data.get(name)
    return default if value is None else value.get("_data") if isinstance(value, dict) else value
