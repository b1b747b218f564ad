"""Checkpoints of HQQ, torchao, Quark and MLX, from their definitions."""

import torch
from kit.folder.quantized_words import awq, compressed, float8, narrow, pack


def hqq(bits=4, size=32, is_whole=False, **changes):
    """HQQ: groups of a row are rows of their own, runs of which share bytes; zero points are numbers of any kind."""

    def encode(weight):
        groups = weight.reshape(-1, size)
        low, high = groups.amin(1, keepdim=True).clamp(max=0), groups.amax(1, keepdim=True).clamp(min=0)
        scale = ((high - low) / (2**bits - 1)).half().float()
        zero = -low / scale
        zero = zero.round() if is_whole else zero
        codes = (groups / scale + zero).round().clamp(0, 2**bits - 1)
        runs = codes.to(torch.uint8).view(8 // bits, -1, size)
        words = sum(run << (8 - bits * (place + 1)) for place, run in enumerate(runs)).to(torch.uint8)
        facts = {"nbits": bits, "group_size": size, "axis": 1, "view_as_float": 0, "quant_zero": 0, "quant_scale": 0}
        parts = {name: torch.tensor(value, dtype=torch.int32) for name, value in facts.items()}
        parts |= {"packing": torch.tensor(list(f"{bits}bit_u8".encode()), dtype=torch.uint8)}
        parts |= {"W_q": words, "scale": scale, "zero": zero, "shape": torch.tensor(weight.shape)}
        return parts, ((codes - zero) * scale).view(weight.shape)

    weights = {"nbits": bits, "group_size": size, "axis": 1, "channel_wise": True, "optimize": True,
               "round_zero": is_whole, "view_as_float": False}  # fmt: skip
    config = {"quant_method": "hqq", "skip_modules": ["lm_head"],
              "quant_config": {"weight_quant_params": weights, "scale_quant_params": None, "zero_quant_params": None,
                               "offload_meta": False}}  # fmt: skip
    return config | changes, encode


def torchao(kind="Int8WeightOnlyConfig", size=None, **changes):
    """torchao's tensors, as it flattens them for safetensors."""
    is_float = kind.startswith("Float8")

    def encode(weight):
        groups = weight.unflatten(1, (-1, size or weight.shape[1]))
        scale = (groups.abs().amax(-1) / (448 if is_float else 127)).bfloat16().float()
        values = (groups / scale.unsqueeze(-1)).clamp(-448, 448)
        values = values.to(torch.float8_e4m3fn) if is_float else values.round().clamp(-128, 127).to(torch.int8)
        parts = {"_weight_qdata": values.flatten(1), "_weight_scale": scale}
        if not is_float:
            parts["_weight_zero_point"] = torch.zeros(scale.shape, dtype=torch.int8)
        return parts, (values.float() * scale.unsqueeze(-1)).flatten(1)

    by = {"_type": "PerRow", "_version": 1, "_data": {"dim": -1}}
    if size is not None:
        by = {"_type": "PerGroup", "_version": 1, "_data": {"group_size": size}}
    own = {"granularity": by, "set_inductor_config": True} | changes
    config = {"quant_method": "torchao", "modules_to_not_convert": ["lm_head"], "untie_embedding_weights": False,
              "include_input_output_embeddings": False,
              "quant_type": {"default": {"_type": kind, "_version": 2, "_data": own}}}  # fmt: skip
    return config, encode


def quark(dtype="fp8_e4m3", **changes):
    """Quark: the numbers of other formats under names of its own."""
    by = {"fp8_e4m3": "per_tensor", "int8": "per_channel"}.get(dtype, "per_group")
    weight = {"dtype": dtype, "qscheme": by, "ch_axis": 0 if by == "per_channel" else None, "is_dynamic": False,
              "symmetric": dtype != "uint4", "observer_cls": "PerTensorMinMaxObserver"}  # fmt: skip
    names = {"weight_packed": "weight", "qweight": "weight", "qzeros": "weight_zero_point", "scales": "weight_scale"}
    encoders = {
        "fp8_e4m3": lambda: float8(name="weight_scale")[1], "uint4": lambda: awq()[1],
        "int8": lambda: compressed({"num_bits": 8, "strategy": "channel"}, "int-quantized")[1],
        "fp4": lambda: narrow("mxfp4-pack-quantized", 32)[1],
    }  # fmt: skip
    encode_as = encoders.get(dtype, lambda: signed_digits)()
    if by == "per_group":
        weight |= {"group_size": 32} | ({"scale_format": "e8m0"} if dtype == "fp4" else {})

    def encode(values):
        parts, dense = encode_as(values)
        return {names.get(name, name): part for name, part in parts.items()}, dense

    config = {"quant_method": "quark", "quant_mode": "eager_mode", "exclude": ["lm_head"], "algo_config": None,
              "layer_quant_config": {}, "layer_type_quant_config": {}, "softmax_quant_spec": None,
              "export": {"kv_cache_group": [], "min_kv_scale": 0.0, "pack_method": "reorder",
                         "weight_format": "real_quantized", "weight_merge_groups": None},
              "global_quant_config": {"weight": weight | changes, "bias": None, "input_tensors": None,
                                      "output_tensors": None, "target_device": None}}  # fmt: skip
    return config, encode


def signed_digits(weight, size=32):
    """Digits from -8 to 7 in AWQ's order, without zero points."""
    groups = weight.t().unflatten(0, (-1, size))
    scales = (groups.abs().amax(1) / 7).half()
    digits = (groups / scales.float().unsqueeze(1)).round().clamp(-8, 7).long()
    words = pack(digits.flatten(0, 1) & 15, 4, 1, (0, 2, 4, 6, 1, 3, 5, 7))
    dense = (digits * scales.float().unsqueeze(1)).flatten(0, 1).t().contiguous()
    return {"qweight": words, "scales": scales}, dense


def mlx(bits=4, size=64, **changes):
    """MLX: rows of integers, one after the other in words; scales and offsets of groups. mlx-lm 0.32 reads them so."""

    def encode(weight):
        groups = weight.unflatten(-1, (-1, size))
        low, high = groups.amin(-1), groups.amax(-1)
        scales, offsets = ((high - low) / (2**bits - 1)).half(), low.half()
        steps = (groups - offsets.float().unsqueeze(-1)) / scales.float().unsqueeze(-1)
        codes = steps.round().clamp(0, 2**bits - 1)
        digits = (codes.flatten(-2).long().unsqueeze(-1) >> torch.arange(bits) & 1).flatten(-2)  # one after the other
        words = (digits.unflatten(-1, (-1, 8)) << torch.arange(8)).sum(-1).to(torch.uint8).view(torch.uint32)
        dense = codes * scales.float().unsqueeze(-1) + offsets.float().unsqueeze(-1)
        return {"weight": words, "scales": scales, "biases": offsets}, dense.flatten(-2)

    return {"quant_method": "mlx", "group_size": size, "bits": bits} | changes, encode


def mlx_floats(mode):
    """MLX's modes that are other formats, too: MXFP4 and MXFP8 of compressed-tensors, NVFP4 with a factor of 1."""
    size, bits = (16 if mode == "nvfp4" else 32), (8 if mode == "mxfp8" else 4)

    def encode(weight):
        scale = weight.unflatten(1, (-1, size)).abs().amax(-1) / (448 if bits == 8 else 6)
        scale = scale.to(torch.float8_e4m3fn) if mode == "nvfp4" else scale.log2().ceil()
        factors = (scale.float() if mode == "nvfp4" else torch.exp2(scale)).unsqueeze(-1)
        steps = weight.unflatten(1, (-1, size)) / factors
        if bits == 8:
            values = steps.clamp(-448, 448).to(torch.float8_e4m3fn)
            words, dense = values.view(torch.uint8), values.float()
        else:
            magnitudes = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
            numbers = torch.cat((magnitudes, -magnitudes))
            codes = (steps.unsqueeze(-1) - numbers).abs().argmin(-1)
            words, dense = codes[..., ::2] | codes[..., 1::2] << 4, numbers[codes]
        stored = scale.view(torch.uint8) if mode == "nvfp4" else (scale + 127).to(torch.uint8)
        parts = {"weight": words.flatten(1).to(torch.uint8).view(torch.uint32), "scales": stored}
        return parts, (dense * factors).flatten(1)

    return {"quant_method": "mlx", "group_size": size, "bits": bits, "mode": mode}, encode
