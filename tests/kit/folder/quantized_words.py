"""Writes quantized checkpoints without lullm: by compressed-tensors, or from the definitions of the other formats."""

import json

import torch


def compressed(weights, stored, **changes):
    """(config, encode) of a compressed-tensors checkpoint: `weights` are the arguments of the weights' quantization."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.utils import calculate_qparams

    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**weights))
    group = {"targets": ["Linear"], "weights": scheme.weights.model_dump(mode="json"), "input_activations": None}
    config = {"quant_method": "compressed-tensors", "format": stored, "config_groups": {"group_0": group},
              "ignore": ["lm_head"], "quantization_status": "compressed", **changes}  # fmt: skip
    compressor = BaseCompressor.get_value_from_registry(stored)

    def encode(weight):
        blocks, args = weight, scheme.weights
        if args.strategy == "group":
            blocks = weight.unflatten(1, (-1, args.group_size))
        if args.strategy == "block":
            rows, columns = args.block_structure
            blocks = weight.unflatten(1, (-1, columns)).unflatten(0, (-1, rows)).transpose(1, 2).flatten(2)
        low, high = blocks.amin(-1), blocks.amax(-1)
        if args.strategy == "tensor":
            low, high = weight.min()[None], weight.max()[None]
        if args.strategy == "channel":
            low, high = low[:, None], high[:, None]
        scale, zero = calculate_qparams(low, high, args)
        if stored.startswith("mx"):
            scale = torch.exp2(scale.log2().ceil())
        scale = scale.half().float()  # such scales are what checkpoints in float16 and bfloat16 hold
        state = {"weight": weight, "weight_scale": scale, "weight_zero_point": zero}
        parts = compressor.compress(state, scheme)
        dense = compressor.decompress(parts, scheme)["weight"]
        return {name: part.contiguous() for name, part in parts.items()}, dense.float()

    return config, encode


def _grouped(weight, bits, size):
    """(integers [in, out], zeros, scales [groups, out]), unsigned and asymmetric, float16 scales."""
    groups = weight.t().unflatten(0, (-1, size))  # [groups, size, out]
    low, high = groups.amin(1).clamp(max=0), groups.amax(1).clamp(min=0)
    scales = ((high - low) / (2**bits - 1)).half()
    zeros = (-low / scales.float()).round().clamp(0, 2**bits - 1)
    integers = (groups / scales.float().unsqueeze(1) + zeros.unsqueeze(1)).round().clamp(0, 2**bits - 1)
    return integers.flatten(0, 1).long(), zeros.long(), scales


def pack(values, bits, dim, order=None):
    """int32 words of `values` along a dimension, 32 / bits each, the first in the low bits."""
    per_word = 32 // bits
    values = values.movedim(dim, -1).unflatten(-1, (-1, per_word))
    if order is not None:
        values = values[..., list(order)]
    words = sum(values[..., i] << (bits * i) for i in range(per_word))
    words = torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)
    return words.movedim(-1, dim).contiguous()


def awq(size=32, **changes):
    """AutoAWQ's "gemm" format: nibble i of a word is the output `order[i]`."""
    order = (0, 2, 4, 6, 1, 3, 5, 7)

    def encode(weight):
        integers, zeros, scales = _grouped(weight, 4, size)
        parts = {"qweight": pack(integers, 4, 1, order), "qzeros": pack(zeros, 4, 1, order), "scales": scales}
        groups = torch.arange(len(integers)) // size
        return parts, ((integers - zeros[groups]) * scales.float()[groups]).t().contiguous()

    config = {"quant_method": "awq", "bits": 4, "group_size": size, "zero_point": True, "version": "gemm",
              "modules_to_not_convert": None}  # fmt: skip
    return config | changes, encode


def gptq(bits=4, size=32, version=1, act_order=False, symmetric=False, **changes):
    """GPTQ: words along the inputs; version 1 stores zero points less one, over whole words."""

    def encode(weight):
        order = torch.arange(weight.shape[1])
        width = weight.shape[1] if size == -1 else size
        if act_order:
            order = torch.randperm(weight.shape[1], generator=torch.Generator().manual_seed(7))
        groups = torch.empty_like(order)
        groups[order] = torch.arange(weight.shape[1]) // width
        integers, zeros, scales = _grouped(weight[:, order], bits, width)
        if symmetric:
            largest = weight[:, order].t().unflatten(0, (-1, width)).abs().amax(1)
            scales, zeros = (largest / (2 ** (bits - 1) - 1)).half(), torch.full_like(zeros, 2 ** (bits - 1))
            values = weight[:, order].t().unflatten(0, (-1, width)) / scales.float().unsqueeze(1)
            integers = (values.round() + 2 ** (bits - 1)).clamp(0, 2**bits - 1).flatten(0, 1).long()
        back = torch.empty_like(integers)
        back[order] = integers
        words = pack(zeros, bits, 1)
        if version == 1:
            words = (words.long() - sum(1 << (bits * i) for i in range(32 // bits))).to(torch.int32)
        parts = {"qweight": pack(back, bits, 0), "qzeros": words, "scales": scales, "g_idx": groups.to(torch.int32)}
        return parts, ((back - zeros[groups]) * scales.float()[groups]).t().contiguous()

    config = {"quant_method": "gptq", "bits": bits, "group_size": size, "desc_act": act_order, "sym": symmetric,
              "checkpoint_format": "gptq" if version == 1 else "gptq_v2"}  # fmt: skip
    return config | changes, encode


def float8(block=None, per_row=False, name="weight_scale_inv", **changes):
    """FP8 as Qwen and DeepSeek (blocks), Mistral (a tensor) and Meta (rows) release it."""

    def encode(weight):
        rows, columns = block or (1 if per_row else len(weight), weight.shape[1])
        padded = torch.nn.functional.pad(weight, (0, -weight.shape[1] % columns, 0, -len(weight) % rows))
        blocks = padded.unflatten(1, (-1, columns)).unflatten(0, (-1, rows))  # [R, rows, C, columns]
        scale = blocks.abs().amax((1, 3)) / 448
        spread = scale.repeat_interleave(rows, 0).repeat_interleave(columns, 1)[: len(weight), : weight.shape[1]]
        values = (weight / spread).to(torch.float8_e4m3fn)
        dense = values.float() * spread
        scale = scale if block or per_row else scale.reshape(())
        return {"weight": values, name: scale, "input_scale": torch.tensor(3.0)}, dense

    size = None if block is None else list(block)
    config = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": size, "modules_to_not_convert": ["lm_head"]}
    return config | changes, encode


def narrow(stored, size):
    """NVFP4 and MXFP4 of compressed-tensors: numbers of 4 bits with scales of groups of `size`."""
    strategy = "tensor_group" if size == 16 else "group"
    weights = {"num_bits": 4, "type": "float", "strategy": strategy, "group_size": size}
    config, _ = compressed(weights, stored)

    def encode(weight):
        from compressed_tensors.compressors import BaseCompressor
        from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
        from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

        scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**weights))
        compressor = BaseCompressor.get_value_from_registry(stored)
        scale = weight.unflatten(1, (-1, size)).abs().amax(-1) / 6
        state = {"weight": weight, "weight_scale": torch.exp2(scale.log2().ceil())}
        if size == 16:
            whole = 448 * 6 / weight.abs().max()
            scale = (scale * whole).to(torch.float8_e4m3fn).float()
            state |= {"weight_scale": scale, "weight_global_scale": whole[None]}
        parts = {name: part.contiguous() for name, part in compressor.compress(state, scheme).items()}
        dense = compressor.decompress(parts, scheme)["weight"].float()  # rounded to bfloat16, which MXFP4 fits
        if size == 16:
            numbers = unpack_fp4_from_uint8(parts["weight_packed"], *weight.shape, dtype=torch.float32)
            exact = (numbers.unflatten(1, (-1, size)) * (scale / whole).unsqueeze(-1)).flatten(1)
            torch.testing.assert_close(exact, dense, rtol=2**-6, atol=0)
            dense = exact
        return parts, dense

    return config, encode


def modelopt(**changes):
    """NVFP4 under ModelOpt's names: the scale of the tensor is what others are multiplied by."""
    _, encode_compressed = narrow("nvfp4-pack-quantized", 16)

    def encode(weight):
        parts, dense = encode_compressed(weight)
        whole = 1 / parts["weight_global_scale"].squeeze()
        own = {"weight": parts["weight_packed"], "weight_scale_2": whole, "input_scale": torch.tensor(3.0)}
        return own | {"weight_scale": parts["weight_scale"]}, dense

    config = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"],
              "producer": {"name": "modelopt"}, "kv_cache_scheme": {"type": "float", "num_bits": 8}}  # fmt: skip
    return config | changes, encode


def auto_round(layout="auto_round:auto_gptq", **changes):
    """AutoRound: the layouts of GPTQ and AWQ, zero points less one in the first only."""
    _, encode = awq() if layout.endswith("awq") else gptq(version=1 if layout.endswith("gptq") else 2, symmetric=True)
    config = {"quant_method": "auto-round", "bits": 4, "group_size": 32, "sym": not layout.endswith("awq"),
              "data_type": "int", "packing_format": layout, "iters": 200, "autoround_version": "0.5.1"}  # fmt: skip

    def encode_round(weight):
        parts, dense = encode(weight)
        return {name: part for name, part in parts.items() if name != "g_idx"}, dense

    return config | changes, encode_round


def normal_table():
    """nf4's 16 numbers (https://arxiv.org/abs/2305.14314): of equal shares of a normal distribution, and zero."""
    from statistics import NormalDist

    places = [torch.linspace(0.9677083, 0.5, count)[:-1].tolist() for count in (9, 8)]
    above, below = ([NormalDist().inv_cdf(place) for place in each] for each in places)
    values = torch.tensor(sorted([*above, 0.0, *(-value for value in below)]))
    return values / values.max()


def bitsandbytes(is_nested=False, run=64, **changes):
    """4 bits by a table, the first of two in the high bits; runs of weights go over the rows."""

    def encode(weight):
        table, flat = normal_table(), weight.flatten()
        runs = torch.nn.functional.pad(flat, (0, -len(flat) % run)).view(-1, run)
        scales, parts = runs.abs().amax(1), {}
        state = {"quant_type": "nf4", "blocksize": run, "dtype": "bfloat16", "shape": list(weight.shape)}
        parts["weight.absmax"] = scales
        if is_nested:
            middle, levels = scales.mean(), torch.linspace(-1, 1, 256)
            padded = torch.nn.functional.pad(scales - middle, (0, -len(scales) % 16)).view(-1, 16)
            outer = padded.abs().amax(1)
            codes = ((padded / outer[:, None]).unsqueeze(-1) - levels).abs().argmin(-1)
            scales = (levels[codes] * outer[:, None]).flatten()[: len(scales)] + middle
            parts |= {"weight.absmax": codes.flatten()[: len(scales)].to(torch.uint8), "weight.nested_absmax": outer,
                      "weight.nested_quant_map": levels}  # fmt: skip
            state |= {"nested_blocksize": 16, "nested_dtype": "float32", "nested_offset": middle.item()}
        codes = ((runs / scales[:, None]).unsqueeze(-1) - table).abs().argmin(-1)
        dense = (table[codes] * scales[:, None]).flatten()[: len(flat)].view(weight.shape)
        codes = codes.flatten()[: len(flat)].to(torch.uint8)
        text = torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)
        parts |= {"weight": (codes[::2] << 4 | codes[1::2]).unsqueeze(1), "weight.quant_map": table,
                  "weight.quant_state.bitsandbytes__nf4": text}  # fmt: skip
        return parts, dense

    config = {"quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": False, "_load_in_4bit": True,
              "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": is_nested, "llm_int8_threshold": 6.0,
              "bnb_4bit_compute_dtype": "bfloat16", "llm_int8_skip_modules": ["lm_head"]}  # fmt: skip
    return config | changes, encode


def bitsandbytes_int8():
    def encode(weight):
        largest = weight.abs().amax(1)
        integers = (weight / largest[:, None] * 127).round().to(torch.int8)
        parts = {"weight": integers, "SCB": largest, "weight_format": torch.tensor(0, dtype=torch.uint8)}
        return parts, integers.float() * (largest / 127)[:, None]

    return {"quant_method": "bitsandbytes", "load_in_8bit": True, "llm_int8_threshold": 6.0}, encode
