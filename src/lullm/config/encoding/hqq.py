"""HQQ (https://mobiusml.github.io/hqq_blog/): integers with zero points that are no integers."""

from lullm.config.encoding.keys import check_known, choice, group_size, module_names, obj
from lullm.config.encoding.scheme import EVERYTHING, CheckpointEncoding, IntegerScheme, Targets
from lullm.config.field import Data

_OF_ROUNDING = ("channel_wise", "optimize", "round_zero")


def read_hqq(data: Data) -> CheckpointEncoding:
    """Read the one scheme for all. Older files, with quantized scales and zero points, are refused."""
    check_known(data, ("quant_config", "skip_modules"), (), ())
    stated = obj(data.get("quant_config"), "quant_config")
    refused = ("scale_quant_params", "zero_quant_params")
    check_known(stated, ("weight_quant_params",), ("offload_meta",), refused)
    weights = obj(stated.get("weight_quant_params"), "weight_quant_params")
    check_known(weights, ("nbits", "group_size", "axis"), _OF_ROUNDING, ("view_as_float",))
    choice(weights, "axis", (1,), 1)
    scheme = IntegerScheme(
        choice(weights, "nbits", (1, 2, 4, 8), None), group_size(weights), is_symmetric=False, packing="hqq"
    )
    left = Targets(parts=frozenset(module_names(data, "skip_modules")))
    return CheckpointEncoding("hqq", ((EVERYTHING, scheme),), left)
