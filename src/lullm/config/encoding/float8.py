"""FP8 as Qwen, DeepSeek, Mistral and Meta release it: e4m3 numbers with a scale per tensor, row or block."""

from lullm.config.encoding.compressed_tensors import block_size
from lullm.config.encoding.keys import check_known, choice, module_names
from lullm.config.encoding.scheme import EVERYTHING, CheckpointEncoding, Float8Scheme, Targets
from lullm.config.field import Data


def read_float8(data: Data) -> CheckpointEncoding:
    """Read the config. `weight_block_size` null: a scale per tensor or row. Activations are not quantized."""
    reads = ("weight_block_size", "modules_to_not_convert", "ignored_layers", "fmt", "scale_fmt", "expert_dtype")
    check_known(data, reads, ("activation_scheme", "activation_scale_ub", "dequantize", "modules_to_convert",
                              "kv_cache_scheme"), ())  # fmt: skip
    choice(data, "fmt", ("e4m3", "float8_e4m3fn"), "e4m3")
    choice(data, "scale_fmt", ("float", "ue8m0"), "float")
    choice(data, "expert_dtype", ("fp8",), "fp8")
    size = data.get("weight_block_size")
    scheme = Float8Scheme(None if size is None else block_size(size, "weight_block_size"))
    ignored = Targets(parts=frozenset(module_names(data, "modules_to_not_convert", "ignored_layers")))
    return CheckpointEncoding("fp8", ((EVERYTHING, scheme),), ignored)
