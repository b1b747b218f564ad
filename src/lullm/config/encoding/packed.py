"""AWQ (https://arxiv.org/abs/2306.00978) and GPTQ (https://arxiv.org/abs/2210.17323): integers packed into words."""

from lullm.config.encoding.keys import Data, check_known, choice, fault, group_size, module_names
from lullm.config.encoding.scheme import EVERYTHING, CheckpointEncoding, IntegerScheme, Targets

_OF_TOOLS = (
    "backend", "batch_size", "block_name_to_quantize", "cache_block_outputs", "damp_percent", "damp_auto_increment",
    "dataset", "disable_exllama", "do_fuse", "exllama_config", "fuse_max_seq_len", "max_input_length", "meta",
    "model_file_base_name", "model_name_or_path", "model_seqlen", "module_name_preceding_first_block",
    "modules_in_block_to_quantize", "modules_to_fuse", "mse", "pad_token_id", "quantizer", "static_groups", "tokenizer",
    "true_sequential", "use_cuda_fp16", "use_exllama", "act_group_aware", "lm_head", "is_marlin_format", "pack_dtype",
    "use_safetensors", "zero_point",
)  # fmt: skip


def read_awq(data: Data) -> CheckpointEncoding:
    """The kernels' format "gemm" only; files of "gemv", "marlin" and others hold the numbers in another order."""
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
