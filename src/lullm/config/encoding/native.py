"""lullm's own 4-bit files, which `lullm quantize` writes."""

from lullm.config.encoding.keys import Data, check_known, choice, module_names
from lullm.config.encoding.scheme import EVERYTHING, CheckpointEncoding, IntegerScheme, NativeScheme, Targets


def read_native(data: Data) -> CheckpointEncoding:
    """`int8_modules` hold bytes, all others digits."""
    check_known(data, ("bits", "int8_modules"), (), ())
    choice(data, "version", (1,), None)
    choice(data, "bits", (4,), None)
    by_bytes = Targets(frozenset(module_names(data, "int8_modules")))
    plain = IntegerScheme(8, None, is_symmetric=True, packing="plain")
    return CheckpointEncoding("lullm", ((EVERYTHING, NativeScheme()), (by_bytes, plain)))
