"""bitsandbytes (https://github.com/bitsandbytes-foundation/bitsandbytes): 4 bits by a table, int8 by rows."""

from lullm.config.encoding.keys import check_known, choice, module_names
from lullm.config.encoding.scheme import EVERYTHING, CheckpointEncoding, IntegerScheme, TableScheme, Targets
from lullm.config.field import Data

_OF_RUNNING = (
    "bnb_4bit_compute_dtype", "bnb_4bit_quant_storage", "bnb_4bit_use_double_quant", "llm_int8_has_fp16_weight",
    "llm_int8_enable_fp32_cpu_offload", "llm_int8_threshold",
)  # fmt: skip


def read_bitsandbytes(data: Data) -> CheckpointEncoding:
    """Read the config. The format of 4 bits is stored beside each matrix, so it is not read here."""
    check_known(data, ("bnb_4bit_quant_type", "llm_int8_skip_modules"), _OF_RUNNING, ())
    has_bytes = choice(data, "load_in_8bit", (True, False), bool(data.get("_load_in_8bit")))
    scheme = IntegerScheme(8, None, is_symmetric=True, packing="plain") if has_bytes else TableScheme()
    left = Targets(parts=frozenset(module_names(data, "llm_int8_skip_modules")))
    return CheckpointEncoding("bitsandbytes", ((EVERYTHING, scheme),), left)
