"""Writes quantized checkpoints without lullm, of every format: see `quantized_words` and `quantized_tools`."""

import json

from kit.folder.quantized_tools import hqq, mlx, mlx_floats, quark, torchao
from kit.folder.quantized_words import (
    auto_round,
    awq,
    bitsandbytes,
    bitsandbytes_int8,
    compressed,
    float8,
    gptq,
    modelopt,
    narrow,
)
from safetensors.torch import load_file, save_file

LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
INT4 = {"num_bits": 4, "strategy": "group", "group_size": 32}
FORMATS = {
    "w8a8": lambda: compressed({"num_bits": 8, "strategy": "channel"}, "int-quantized"),
    "w8 tensor": lambda: compressed({"num_bits": 8, "strategy": "tensor"}, "int-quantized"),
    "w8 asymmetric": lambda: compressed({"num_bits": 8, "strategy": "channel", "symmetric": False}, "naive-quantized"),
    "w8a16": lambda: compressed({"num_bits": 8, "strategy": "channel"}, "pack-quantized"),
    "w4a16": lambda: compressed(INT4, "pack-quantized"),
    "w4a16 asymmetric": lambda: compressed(INT4 | {"symmetric": False}, "pack-quantized"),
    "w4a16 channel": lambda: compressed({"num_bits": 4, "strategy": "channel"}, "pack-quantized"),
    "fp8 tensor": lambda: compressed({"num_bits": 8, "type": "float", "strategy": "tensor"}, "float-quantized"),
    "fp8 channel": lambda: compressed({"num_bits": 8, "type": "float", "strategy": "channel"}, "float-quantized"),
    "fp8 blocks": lambda: compressed(
        {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [16, 32]}, "float-quantized"
    ),
    "nvfp4": lambda: narrow("nvfp4-pack-quantized", 16),
    "mxfp4": lambda: narrow("mxfp4-pack-quantized", 32),
    "mxfp8": lambda: compressed(
        {"num_bits": 8, "type": "float", "strategy": "group", "group_size": 32}, "mxfp8-quantized"
    ),
    "nvfp4 of ModelOpt": modelopt,
    "nf4": bitsandbytes,
    "nf4 nested": lambda: bitsandbytes(is_nested=True),
    "int8 of bitsandbytes": bitsandbytes_int8,
    "AutoRound": auto_round,
    "AutoRound as GPTQ v2": lambda: auto_round("auto_round:gptqmodel"),
    "AutoRound as AWQ": lambda: auto_round("auto_round:auto_awq"),
    "HQQ": hqq,
    "HQQ, 2 bits": lambda: hqq(2),
    "HQQ, 8 bits": lambda: hqq(8),
    "HQQ, whole zero points": lambda: hqq(is_whole=True),
    "torchao, int8": torchao,
    "torchao, groups": lambda: torchao("IntxWeightOnlyConfig", 32),
    "torchao, fp8": lambda: torchao("Float8WeightOnlyConfig"),
    "Quark, fp8": quark,
    "Quark, int8": lambda: quark("int8"),
    "Quark, MXFP4": lambda: quark("fp4"),
    "Quark, uint4": lambda: quark("uint4"),
    "Quark, int4": lambda: quark("int4"),
    "MLX": lambda: mlx(size=32),
    "MLX, 2 bits": lambda: mlx(2, 32),
    "MLX, 3 bits": lambda: mlx(3, 32),
    "MLX, 5 bits": lambda: mlx(5, 32),
    "MLX, 6 bits": lambda: mlx(6, 32),
    "MLX, 8 bits": lambda: mlx(8, 32),
    "MLX, MXFP4": lambda: mlx_floats("mxfp4"),
    "MLX, NVFP4": lambda: mlx_floats("nvfp4"),
    "MLX, MXFP8": lambda: mlx_floats("mxfp8"),
    "awq": awq,
    "gptq v1": gptq,
    "gptq v2": lambda: gptq(version=2),
    "gptq act-order": lambda: gptq(act_order=True),
    "gptq symmetric": lambda: gptq(symmetric=True),
    "gptq 8 bits": lambda: gptq(bits=8),
    "gptq 8 bits symmetric": lambda: gptq(bits=8, symmetric=True),
    "gptq 2 bits": lambda: gptq(bits=2),
    "gptq rows": lambda: gptq(size=-1, symmetric=True),
    "fp8 of Qwen": lambda: float8(block=(48, 24)),
    "fp8 of Mistral": float8,
    "fp8 of Meta": lambda: float8(per_row=True, name="weight_scale", quant_method="fbgemm_fp8"),
}  # fmt: skip
BYTES, DIGITS, GROUPS, BYTE_GROUPS, ZERO_POINTS, OFFSETS, BYTE_OFFSETS = 8, 4, 16, 17, 22, 23, 24
FLOAT_ROWS, FLOAT_BLOCKS, MXFP4 = 32 | 3 << 8, 32 | 1 << 8, 33
"""e4m3, with the blocks of 32 inputs that share a scale, of 96; e2m1."""
NATIVE = {
    "w8a8": (BYTES,), "w8 tensor": (BYTES,), "w8a16": (BYTES,), "w4a16 channel": (DIGITS, BYTES),
    "gptq rows": (DIGITS, BYTES), "w4a16": (GROUPS, ZERO_POINTS), "gptq symmetric": (GROUPS, ZERO_POINTS),
    "w4a16 asymmetric": (ZERO_POINTS,), "awq": (ZERO_POINTS,), "gptq v1": (ZERO_POINTS,), "gptq v2": (ZERO_POINTS,),
    "gptq 2 bits": (ZERO_POINTS,), "gptq 8 bits symmetric": (BYTE_GROUPS,),
    "fp8 tensor": (FLOAT_ROWS,), "fp8 channel": (FLOAT_ROWS,), "fp8 of Mistral": (FLOAT_ROWS,),
    "AutoRound": (GROUPS, ZERO_POINTS), "AutoRound as GPTQ v2": (GROUPS, ZERO_POINTS),
    "AutoRound as AWQ": (ZERO_POINTS,),
    "HQQ, whole zero points": (ZERO_POINTS,), "torchao, int8": (BYTES,), "torchao, groups": (BYTE_GROUPS,),
    "torchao, fp8": (FLOAT_ROWS,), "Quark, fp8": (FLOAT_ROWS,), "Quark, int8": (BYTES,), "Quark, MXFP4": (MXFP4,),
    "Quark, uint4": (ZERO_POINTS,), "Quark, int4": (GROUPS, ZERO_POINTS),
    "int8 of bitsandbytes": (BYTES,), "mxfp4": (MXFP4,), "mxfp8": (FLOAT_BLOCKS,),
    "MLX": (OFFSETS, BYTE_OFFSETS), "MLX, 2 bits": (OFFSETS, BYTE_OFFSETS), "MLX, 3 bits": (OFFSETS, BYTE_OFFSETS),
    "MLX, 5 bits": (BYTE_OFFSETS,), "MLX, 6 bits": (BYTE_OFFSETS,), "MLX, MXFP4": (MXFP4,),
    "MLX, MXFP8": (FLOAT_BLOCKS,),
    "fp8 of Meta": (FLOAT_ROWS,), "fp8 blocks": (FLOAT_BLOCKS,),
}  # fmt: skip
"""The native formats (`Layout.format`) that hold what a checkpoint holds exactly, the smallest first."""


def is_linear(name):
    *_, layer, last = name.split(".")
    return layer in LINEAR and last == "weight"


def write(source, encoded, dense, make, leave=()):
    """Two copies of a model folder: quantized, and in the floating point numbers that this means.

    leave: names of modules that stay as they are.
    """
    import shutil

    config, encode = make()
    tensors = load_file(source / "model.safetensors")
    quantized, decoded = {}, dict(tensors)
    for name, tensor in tensors.items():
        module = name.removesuffix(".weight")
        if not is_linear(name) or any(part in module for part in leave):
            quantized[name] = tensor
            continue
        parts, decoded[name] = encode(tensor)
        quantized |= {f"{module}.{part}": value for part, value in parts.items()}
    for folder, content in ((encoded, quantized), (dense, decoded)):
        shutil.copytree(source, folder, dirs_exist_ok=True)
        save_file(content, folder / "model.safetensors")
    stated = json.loads((source / "config.json").read_text()) | {"quantization_config": config, "dtype": "bfloat16"}
    (encoded / "config.json").write_text(json.dumps(stated))
    return config
