"""`quantization_config` as publishers write it, key for key, and how its matrices are stored."""

from kit.folder import quantized

_WEIGHTS = {
    "actorder": None, "block_structure": None, "dynamic": False, "group_size": None, "num_bits": 8,
    "observer": "minmax", "observer_kwargs": {}, "strategy": "channel", "symmetric": True, "type": "int",
}  # fmt: skip
_BY_TOKEN = _WEIGHTS | {"dynamic": True, "observer": None, "strategy": "token"}
_FLOAT = {"type": "float"}


def _compressed(stored, weights, activations, **changes):
    group = {"input_activations": activations, "output_activations": None, "targets": ["Linear"], "weights": weights}
    return {
        "config_groups": {"group_0": group}, "format": stored, "global_compression_ratio": None, "ignore": ["lm_head"],
        "kv_cache_scheme": None, "quant_method": "compressed-tensors", "quantization_status": "compressed",
        "sparsity_config": {}, "transform_config": {}, "version": "0.10.3.a20250731", **changes,
    }  # fmt: skip


_GPTQ = {
    "batch_size": 1, "bits": 4, "block_name_to_quantize": None, "cache_block_outputs": True, "damp_percent": 0.01,
    "dataset": None, "desc_act": False, "exllama_config": {"version": 1}, "group_size": 128, "max_input_length": None,
    "model_seqlen": None, "module_name_preceding_first_block": None, "modules_in_block_to_quantize": None,
    "pad_token_id": None, "quant_method": "gptq", "sym": True, "tokenizer": None, "true_sequential": True,
    "use_cuda_fp16": False, "use_exllama": True,
}  # fmt: skip
_INT4 = _WEIGHTS | {"actorder": "weight", "group_size": 128, "num_bits": 4, "strategy": "group"}
_BLOCKS = {"strategy": "block", "block_structure": [128, 128]}


def _encode(weights, stored):
    return lambda: quantized.compressed({"num_bits": 8, **weights}, stored)[1]


_NVFP4 = _WEIGHTS | _FLOAT | {"group_size": 16, "num_bits": 4, "strategy": "tensor_group"}
RUNS = {
    "RedHatAI, NVFP4": (
        _compressed("nvfp4-pack-quantized", _NVFP4, _NVFP4 | {"dynamic": "local"}),
        lambda: quantized.narrow("nvfp4-pack-quantized", 16)[1],
    ),
    "NVIDIA, ModelOpt": (
        {"config_groups": {"group_0": {"input_activations": {"dynamic": False, "group_size": 16, "num_bits": 4},
                                       "targets": ["Linear"], "weights": {"group_size": 16, "num_bits": 4}}},
         "ignore": ["lm_head"], "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"},
         "producer": {"name": "modelopt", "version": "0.33.0"}, "quant_algo": "NVFP4", "quant_method": "modelopt"},
        lambda: quantized.modelopt()[1],
    ),
    "unsloth, bnb-4bit": (
        {"_load_in_4bit": True, "_load_in_8bit": False, "bnb_4bit_compute_dtype": "bfloat16",
         "bnb_4bit_quant_storage": "uint8", "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True,
         "llm_int8_enable_fp32_cpu_offload": False, "llm_int8_has_fp16_weight": False,
         "llm_int8_skip_modules": None, "llm_int8_threshold": 6.0, "load_in_4bit": True, "load_in_8bit": False,
         "quant_method": "bitsandbytes"},
        lambda: quantized.bitsandbytes(is_nested=True)[1],
    ),
    "bitsandbytes, 8 bits": (
        {"llm_int8_threshold": 6.0, "load_in_4bit": False, "load_in_8bit": True, "quant_method": "bitsandbytes"},
        lambda: quantized.bitsandbytes_int8()[1],
    ),
    "Intel, AutoRound": (
        {"autoround_version": "0.6.0", "batch_size": 8, "bits": 4, "data_type": "int", "enable_quanted_input": False,
         "gradient_accumulate_steps": 1, "group_size": 32, "iters": 200, "low_gpu_mem_usage": True, "nsamples": 128,
         "block_name_to_quantize": "model.layers", "packing_format": "auto_round:auto_gptq",
         "quant_method": "auto-round", "seqlen": 2048, "sym": True},
        lambda: quantized.auto_round()[1],
    ),
    "RedHatAI, quantized.w4a16": (
        _compressed("pack-quantized", _INT4, None),
        _encode({"num_bits": 4, "strategy": "group", "group_size": 128}, "pack-quantized"),
    ),
    "RedHatAI, quantized.w8a8": (
        _compressed("int-quantized", _WEIGHTS, _BY_TOKEN), _encode({"strategy": "channel"}, "int-quantized")
    ),
    "RedHatAI, FP8-dynamic": (
        _compressed("float-quantized", _WEIGHTS | _FLOAT, _BY_TOKEN | _FLOAT),
        _encode({"type": "float", "strategy": "channel"}, "float-quantized"),
    ),
    "RedHatAI, FP8-block": (
        _compressed(
            "float-quantized", _WEIGHTS | _FLOAT | _BLOCKS,
            _BY_TOKEN | _FLOAT | {"strategy": "group", "group_size": 128},
        ),
        _encode({"type": "float", **_BLOCKS}, "float-quantized"),
    ),
    "Qwen, AWQ": (
        {"bits": 4, "group_size": 128, "modules_to_not_convert": None, "quant_method": "awq", "version": "gemm",
         "zero_point": True},
        lambda: quantized.awq(128)[1],
    ),
    "Qwen, GPTQ-Int4": (_GPTQ, lambda: quantized.gptq(size=128, symmetric=True)[1]),
    "TheBloke, GPTQ with act-order": (
        {"bits": 4, "damp_percent": 0.1, "desc_act": True, "group_size": 128, "model_file_base_name": "model",
         "model_name_or_path": None, "quant_method": "gptq", "static_groups": False, "sym": True,
         "true_sequential": True},
        lambda: quantized.gptq(size=128, symmetric=True, act_order=True)[1],
    ),
    "GPTQModel": (
        {"bits": 4, "checkpoint_format": "gptq", "desc_act": True, "dynamic": None, "group_size": 128,
         "lm_head": False, "meta": {"damp_percent": 0.1, "quantizer": ["gptqmodel:1.4.5"], "mse": 0.0},
         "pack_dtype": "int32", "quant_method": "gptq", "sym": True},
        lambda: quantized.gptq(size=128, symmetric=True, act_order=True)[1],
    ),
    "Qwen, FP8": (
        {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128]},
        lambda: quantized.float8(block=(128, 128))[1],
    ),
    "Mistral, FP8": (
        {"activation_scheme": "static", "dequantize": False, "modules_to_not_convert": ["lm_head"],
         "quant_method": "fp8", "weight_block_size": None},
        lambda: quantized.float8()[1],
    ),
    "AMD, Quark, FP8": (
        {"algo_config": None, "exclude": ["lm_head"],
         "export": {"kv_cache_group": ["*k_proj", "*v_proj"], "min_kv_scale": 0.0, "pack_method": "reorder",
                    "weight_format": "real_quantized", "weight_merge_groups": None},
         "global_quant_config": {
             "bias": None, "output_tensors": None, "target_device": None,
             "input_tensors": {"dtype": "fp8_e4m3", "is_dynamic": False, "qscheme": "per_tensor"},
             "weight": {"ch_axis": None, "dtype": "fp8_e4m3", "group_size": None, "is_dynamic": False,
                        "observer_cls": "PerTensorMinMaxObserver", "qscheme": "per_tensor", "qat_spec": None,
                        "round_method": "half_even", "scale_type": "float", "symmetric": True}},
         "layer_quant_config": {}, "layer_type_quant_config": {}, "quant_method": "quark", "quant_mode": "eager_mode"},
        lambda: quantized.quark()[1],
    ),
    "PyTorch, torchao, int8": (quantized.torchao()[0], lambda: quantized.torchao()[1]),
    "HQQ": (quantized.hqq(size=64)[0], lambda: quantized.hqq(size=64)[1]),
    "Meta, FP8": (
        {"activation_scale_ub": 1200.0, "modules_to_not_convert": ["lm_head"], "quant_method": "fbgemm_fp8"},
        lambda: quantized.float8(per_row=True, name="weight_scale")[1],
    ),
}  # fmt: skip

_ORIGINAL = "take the original in bfloat16"
REFUSED = {
    "RedHatAI, sparse 2:4": (
        _compressed("marlin-24", _INT4, None), f"format is 'marlin-24'; supported: 'pack-quantized'.*; {_ORIGINAL}"
    ),
    "PyTorch, torchao, int4": (
        {"modules_to_not_convert": None, "quant_method": "torchao",
         "quant_type": {"default": {"_type": "Int4WeightOnlyConfig", "_data": {"group_size": 128}}}},
        f"_type is 'int4weightonlyconfig'; supported: .*; {_ORIGINAL}",
    ),
    "casperhansen, AWQ gemv": (
        {"bits": 4, "group_size": 128, "quant_method": "awq", "version": "gemv", "zero_point": True},
        f"version is 'gemv'; supported: 'gemm'; {_ORIGINAL}",
    ),
    "Qwen, GPTQ of some bits by module": (
        _GPTQ | {"dynamic": {r"-:.*mlp\.gate.*": {}}}, "dynamic .*: not implemented.*; take another checkpoint",
    ),
}  # fmt: skip
