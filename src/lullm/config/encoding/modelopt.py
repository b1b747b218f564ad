"""ModelOpt (https://github.com/NVIDIA/Model-Optimizer): FP8 and NVFP4 as NVIDIA releases them."""

from pathlib import Path

from lullm.config.encoding.keys import check_known, choice, module_names, wildcards
from lullm.config.encoding.scheme import EVERYTHING, CheckpointEncoding, Float4Scheme, Float8Scheme
from lullm.config.field import Data
from lullm.config.json_file import optional_object

_READS = ("quant_algo", "group_size", "ignore", "exclude_modules", "config_groups")
_IGNORES = ("producer", "kv_cache_scheme", "kv_cache_quant_algo")
_REFUSES = ("has_zero_point", "pre_quant_scale", "quantized_layers")


def read_modelopt(data: Data) -> CheckpointEncoding:
    """Read the config. Ignored modules may have wildcards. Activations and the KV cache are not quantized."""
    check_known(data, _READS, _IGNORES, _REFUSES)
    algorithm = choice(data, "quant_algo", ("fp8", "fp8_per_channel_per_token", "nvfp4"), None)
    if algorithm == "nvfp4":
        choice(data, "group_size", (16,), 16)
    left = module_names(data, "ignore", "exclude_modules")
    scheme = Float4Scheme(16) if algorithm == "nvfp4" else Float8Scheme()
    return CheckpointEncoding("modelopt", ((EVERYTHING, scheme),), wildcards(left, "ignore"))


def with_own_file(data: Data, folder: Path) -> Data:
    """A `config.json` with the keys that older copies have only in hf_quant_config.json. Raises ModelLoadError."""
    found = None
    if not data.get("quantization_config"):
        found = optional_object(folder / "hf_quant_config.json").get("quantization")
    if not isinstance(found, dict) or found.get("quant_algo") is None:
        return data
    return {**data, "quantization_config": {"quant_method": "modelopt", **found}}
