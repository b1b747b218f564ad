"""AWQ (https://arxiv.org/abs/2306.00978) and GPTQ (https://arxiv.org/abs/2210.17323): integers packed into words.

AutoRound (https://arxiv.org/abs/2309.05516) writes both layouts, under its own keys.
"""

import re

from lullm.config.encoding.keys import check_known, choice, fault, group_size, module_names, targets
from lullm.config.encoding.scheme import EVERYTHING, CheckpointEncoding, IntegerScheme, Packing, Scheme, Targets
from lullm.config.field import Data, shown

_OF_TOOLS = (
    "backend", "batch_size", "block_name_to_quantize", "cache_block_outputs", "damp_percent", "damp_auto_increment",
    "dataset", "disable_exllama", "do_fuse", "exllama_config", "fuse_max_seq_len", "max_input_length", "meta",
    "model_file_base_name", "model_name_or_path", "model_seqlen", "module_name_preceding_first_block",
    "modules_in_block_to_quantize", "modules_to_fuse", "mse", "pad_token_id", "quantizer", "static_groups", "tokenizer",
    "true_sequential", "use_cuda_fp16", "use_exllama", "act_group_aware", "lm_head", "is_marlin_format", "pack_dtype",
    "use_safetensors", "zero_point",
)  # fmt: skip


def read_awq(data: Data) -> CheckpointEncoding:
    """Read the kernels' format "gemm" only; files of "gemv", "marlin" and others hold the numbers in another order."""
    ignores = {*_OF_TOOLS, "sym", "desc_act", "checkpoint_format"}
    check_known(data, ("bits", "w_bit", "group_size", "q_group_size", "version", "format", "modules_to_not_convert"),
                ignores, ())  # fmt: skip
    choice({"bits": data.get("bits", data.get("w_bit"))}, "bits", (4,), 4)
    choice(data, "version", ("gemm",), data.get("format") or "gemm")
    size = group_size({"group_size": data.get("group_size", data.get("q_group_size", 128))})
    scheme = IntegerScheme(4, size, is_symmetric=False, packing="awq")
    return CheckpointEncoding(
        "awq", ((EVERYTHING, scheme),), Targets(parts=frozenset(module_names(data, "modules_to_not_convert")))
    )


def read_gptq(data: Data) -> CheckpointEncoding:
    """Format "gptq" stores zero points less one; "gptq_v2" stores them as they are."""
    check_known(
        data,
        ("bits", "group_size", "sym", "desc_act", "checkpoint_format", "format", "modules_to_not_convert"),
        {*_OF_TOOLS} - {"is_marlin_format"},
        ("dynamic", "is_marlin_format"),
    )
    stored = choice({"checkpoint_format": data.get("checkpoint_format") or data.get("format")},
                    "checkpoint_format", ("gptq", "gptq_v2"), "gptq")  # fmt: skip
    if data.get("pack_dtype") not in (None, "int32"):
        raise fault("pack_dtype: only int32 is supported")
    scheme = IntegerScheme(
        choice(data, "bits", (2, 4, 8), None),
        group_size({"group_size": data.get("group_size", 128)}),
        is_symmetric=choice(data, "sym", (True, False), True),
        packing="gptq",
        zero_offset=1 if stored == "gptq" else 0,
        has_order=choice(data, "desc_act", (True, False), False),
    )
    return CheckpointEncoding(
        "gptq", ((EVERYTHING, scheme),), Targets(parts=frozenset(module_names(data, "modules_to_not_convert")))
    )


_OF_ROUNDING = (
    "act_data_type", "act_dynamic", "act_group_size", "act_sym", "amp", "autoround_version", "batch_size",
    "block_name_to_quantize", "to_quant_block_names", "dataset", "enable_minmax_tuning", "enable_norm_bias_tuning",
    "enable_quanted_input", "gradient_accumulate_steps", "iters", "lr", "low_gpu_mem_usage", "minmax_lr", "nsamples",
    "scale_dtype", "seqlen", "super_bits", "super_group_size", "provider", "backend", "model_dtype",
)  # fmt: skip
_PLAIN_NAME = re.compile(r"[\w.-]+")
_ROUND_FORMATS: dict[str, tuple[Packing, int]] = {
    "auto_round:auto_gptq": ("gptq", 1), "auto_round:gptqmodel": ("gptq", 0), "auto_round": ("gptq", 0),
    "auto_round:auto_awq": ("awq", 0),
}  # fmt: skip
"""The packing, and the number that is added to a stored zero point."""


def read_auto_round(data: Data) -> CheckpointEncoding:
    """Read the config. `extra_config` has exceptions, by names or expressions of modules; 16 bits: not quantized."""
    reads = ("bits", "group_size", "sym", "data_type", "packing_format", "extra_config", "act_bits")
    check_known(data, reads, _OF_ROUNDING, ())
    extra = data.get("extra_config") or {}
    if not isinstance(extra, dict) or not all(isinstance(each, dict) for each in extra.values()):
        raise fault(f"extra_config must map names of modules to objects, not {shown(extra)}")
    groups: list[tuple[Targets, Scheme]] = [(EVERYTHING, _rounded(data))]
    left: list[str] = []
    for name, stated in extra.items():
        entry = name if _PLAIN_NAME.fullmatch(name) else f"re:{name}"
        if stated.get("bits") in (16, 32):
            left.append(entry)
        else:
            groups.insert(0, (targets((entry,), "extra_config"), _rounded({**data, **stated})))
    return CheckpointEncoding("auto-round", tuple(groups), targets(tuple(left), "extra_config"))


def _rounded(data: Data) -> IntegerScheme:
    choice(data, "data_type", ("int",), "int")
    choice(data, "act_bits", (16, 32), 16)
    stored = choice(data, "packing_format", tuple(_ROUND_FORMATS), "auto_round:auto_gptq")
    packing, zero_offset = _ROUND_FORMATS[stored]
    bits = choice(data, "bits", (4,) if packing == "awq" else (2, 4, 8), 4)
    size = group_size({"group_size": data.get("group_size", 128)})
    return IntegerScheme(bits, size, choice(data, "sym", (True, False), True), packing, zero_offset)
