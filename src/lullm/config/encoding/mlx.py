"""MLX (https://github.com/ml-explore/mlx-lm): groups of integers, each with a scale and an offset."""

from lullm.config.encoding.keys import check_known, choice, fault
from lullm.config.encoding.scheme import (
    EVERYTHING,
    AffineScheme,
    CheckpointEncoding,
    Float4Scheme,
    Float8Scheme,
    Scheme,
    Targets,
)
from lullm.config.field import Data, shown

_SCHEME_KEYS = ("group_size", "bits", "mode")


def with_mlx_method(data: Data) -> Data:
    """A `config.json` whose `quantization`, which names no method, is a `quantization_config` of the method "mlx"."""
    stated = data.get("quantization")
    if not isinstance(stated, dict) or not {"group_size", "bits"} <= stated.keys():
        return data
    return {key: value for key, value in data.items() if key != "quantization"} | {
        "quantization_config": {**stated, "quant_method": "mlx"}
    }


def read_mlx(data: Data) -> CheckpointEncoding:
    """Read the config. Names of modules are keys, too: with a scheme of their own, or false for none."""
    modules = {key: value for key, value in data.items() if "." in key or isinstance(value, dict | bool)}
    check_known({key: value for key, value in data.items() if key not in modules}, _SCHEME_KEYS, (), ())
    if wrong := [name for name, own in modules.items() if not isinstance(own, dict | bool)]:
        raise fault(f"{wrong[0]} must be an object, true or false, not {shown(modules[wrong[0]])}")
    apart = [
        (Targets(frozenset({name})), _scheme(data | own)) for name, own in modules.items() if own not in (True, False)
    ]
    plain = frozenset(name for name, own in modules.items() if own is False)
    return CheckpointEncoding("mlx", ((EVERYTHING, _scheme(data)), *apart), Targets(plain))


def _scheme(data: Data) -> Scheme:
    mode = choice(data, "mode", ("affine", "mxfp4", "nvfp4", "mxfp8"), "affine")
    if mode != "affine":
        choice(data, "bits", (8,) if mode == "mxfp8" else (4,), None)
        size = choice(data, "group_size", (16,) if mode == "nvfp4" else (32,), None)
        return Float8Scheme((1, size)) if mode == "mxfp8" else Float4Scheme(size)
    return AffineScheme(choice(data, "bits", (2, 3, 4, 5, 6, 8), None), choice(data, "group_size", (32, 64, 128), None))
