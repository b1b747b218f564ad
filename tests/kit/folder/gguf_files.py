"""GGUF files of a model folder, written by the `gguf` library: names by its own map, blocks by its own `quantize`."""

import json
from pathlib import Path

import gguf
import numpy as np
import torch
from kit.folder import mxfp4
from kit.folder.gguf_keys import DELTA_NETS, add_config, falcon_groups, num_layers, one_of
from kit.model.golden import architecture_of
from safetensors.torch import load_file
from tokenizers import Tokenizer as Backend

ARCHITECTURES = {
    "Llama": "llama", "Qwen2": "qwen2", "Qwen3": "qwen3", "Qwen3Moe": "qwen3moe", "Gemma2": "gemma2",
    "Gemma3": "gemma3", "Phi3": "phi3", "GptOss": "gpt-oss", "Arcee": "arcee", "Cohere": "command-r",
    "Gemma4": "gemma4",
    "Cohere2": "cohere2", "Dots1": "dots1", "Ernie4_5": "ernie4_5", "Ernie4_5_Moe": "ernie4_5-moe",
    "Exaone4": "exaone4", "GPT2": "gpt2", "Gemma": "gemma", "Glm4": "glm4", "Glm4Moe": "glm4moe",
    "Granite": "granite", "GraniteMoe": "granitemoe", "GraniteMoeShared": "granitemoe", "Lfm2": "lfm2",
    "Lfm2Moe": "lfm2moe", "MiniMaxM2": "minimax-m2", "Ministral3": "mistral3", "Mixtral": "llama",
    "Nemotron": "nemotron", "Olmo": "olmo", "Olmo2": "olmo2", "Olmo3": "olmo2", "Olmoe": "olmoe", "Phi": "phi2",
    "Qwen2Moe": "qwen2moe", "SeedOss": "seed_oss", "SmolLM3": "smollm3", "StableLm": "stablelm",
    "Starcoder2": "starcoder2", "DeepseekV2": "deepseek2", "DeepseekV3": "deepseek2",
    "GraniteMoeHybrid": "granitehybrid", "NemotronH": "nemotron_h", "Qwen3Next": "qwen3next",
    "Qwen3_5": "qwen35", "Qwen3_5Moe": "qwen35moe", "Bloom": "bloom", "ExaoneMoe": "exaone-moe", "Falcon": "falcon",
    "FalconH1": "falcon-h1", "FalconMamba": "mamba", "GPTBigCode": "starcoder", "GPTNeoX": "gptneox",
    "Gemma3n": "gemma3n", "Jamba": "jamba", "Mamba": "mamba", "Mamba2": "mamba2", "Mpt": "mpt",
    "Llama4": "llama4", "Apertus": "apertus", "HunYuanDenseV1": "hunyuan-dense", "HunYuanMoEV1": "hunyuan-moe",
    "KimiLinear": "kimi-linear",
}  # fmt: skip
FORMATS = gguf.GGMLQuantizationType
EXPERTS = {
    "gate_proj": "ffn_gate_exps", "up_proj": "ffn_up_exps", "down_proj": "ffn_down_exps",
    "w1": "ffn_gate_exps", "w3": "ffn_up_exps", "w2": "ffn_down_exps",
}  # fmt: skip
PAIRS_TURN = (
    "llama", "arcee", "granite", "granitehybrid", "granitemoe", "internlm2", "minicpm", "mistral3", "olmo", "smollm3",
    "xverse",
)  # fmt: skip
TRANSPOSED = (".c_attn.weight", ".c_proj.weight", ".c_fc.weight")


def architecture_in_file(config, family):
    """Nemotron-H with experts has one of its own."""
    return ARCHITECTURES[family] + "_moe" * (family == "NemotronH" and "moe" in config["layers_block_type"])


def permuted(weight, num_heads):
    """As llama.cpp converts Llama's queries and keys: the two halves of a head take turns."""
    return weight.reshape(num_heads, 2, -1, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def gguf_tensors(folder, family, architecture):
    """Name -> float32 array, as llama.cpp converts a checkpoint."""
    config = json.loads((folder / "config.json").read_text())
    names = gguf.get_tensor_name_map(
        {name: key for key, name in gguf.MODEL_ARCH_NAMES.items()}[architecture], num_layers(config)
    )
    stored = {}
    for path in sorted(folder.glob("*.safetensors")):
        stored |= load_file(path)
    found, experts = {}, {}
    for name, tensor in stored.items():
        values = tensor.float().numpy()
        if architecture in PAIRS_TURN and name.endswith(
            ("q_proj.weight", "k_proj.weight", "q_proj.bias", "k_proj.bias")
        ):
            key = "num_attention_heads" if ".q_proj" in name else "num_key_value_heads"
            values = permuted(values, config[key])
        adds_one = "Gemma" in family and family not in ("Gemma3n", "Gemma4") or family in ("Nemotron", *DELTA_NETS)
        if adds_one and name.endswith("norm.weight") and "linear_attn" not in name:
            values = values + 1
        if family == "GPT2" and name.endswith(TRANSPOSED):
            values = values.T
        if family in FUSED and name.endswith(FUSED[family]):
            values = kinds_apart(values, config, family)
        if family == "FalconH1":
            values = values * factors_of(name, config)
        layer = f"blk.{name.split('.')[2]}" if name.count(".") > 2 else ""
        if family == "Bloom":
            name = name.removeprefix("transformer.")
        if family == "KimiLinear" and "experts" not in name:  # as released files have dense layers
            name = name.replace("block_sparse_moe.gate.", "mlp.gate.").replace("block_sparse_moe", "mlp")
        if "conv.conv" in name or name.endswith("conv1d.weight"):
            values = values[None] if family == "KimiLinear" else values.squeeze(1)
        if family.startswith("Qwen3_5") and "linear_attn" in name:
            values = with_values_in_turn(name, values, config)
        if (part := next((part for part in SPACE if name.endswith(part)), None)) is not None:
            is_flat = family in (*DELTA_NETS, "KimiLinear", "Mamba", "FalconMamba", "Jamba") or part == "dt_bias"
            flat = values if is_flat else values[:, None]
            found[f"{layer}.{SPACE[part]}"] = -np.exp(flat) if part == "A_log" else flat
            continue
        if name.endswith(("mamba.norm.weight", "mixer.norm.weight")):
            values = values.reshape(one_of(config, "mamba_n_groups", "n_groups"), -1)
        if name.endswith("in_proj_qkvz.weight"):
            found |= delta_net(layer, values, config)
            continue
        if name.endswith("kv_b_proj.weight"):
            whole = values.reshape(config["num_attention_heads"], -1, values.shape[-1])
            keys, both = np.split(whole, [config["qk_nope_head_dim"]], axis=1)
            found |= {f"{layer}.attn_k_b.weight": keys.swapaxes(1, 2), f"{layer}.attn_v_b.weight": both}
            continue
        if family == "Llama4" and ".experts." in name:
            for part, each in llama4_experts(name, values):
                found[f"{layer}.{part}.weight"] = each
            continue
        if ".act_fn." in name:  # among the keys
            continue
        if name.endswith("input_linear.weight"):
            kind = "_exps" if "block_sparse" in name else "_shexp" if config.get("num_local_experts") else ""
            for part, each in zip(("gate", "up"), np.split(values, 2, axis=-2), strict=True):
                found[f"{layer}.ffn_{part}{kind}.weight"] = each
            continue
        if name.endswith(("e_score_correction_bias", ".expert_bias")):
            found[f"{layer}.exp_probs_b.bias"] = values.reshape(-1)
            continue
        if name.endswith("shared_mlp.output_linear.weight") and not config.get("num_local_experts"):
            found[f"{layer}.ffn_down.weight"] = values
            continue
        if name.endswith((".router.scale", ".per_expert_scale")):
            found[f"{layer}.ffn_{'down_exps' if 'per_expert' in name else 'gate_inp'}.scale"] = values
            continue
        if name.endswith(("layer_scalar", "experts.down_proj", "experts.gate_up_proj")) and family == "Gemma4":
            name += ".weight"
        if name.endswith("correct_output_scale"):
            name += ".weight"
        if family == "Gemma3n" and name.startswith("model.altup_"):
            key = f"{'altup_proj' if 'altup_proj' in name else 'altup_unembd_proj'}.weight"
            experts.setdefault(key, {})[int(name.split(".")[-2])] = values
            continue
        prefix, is_expert, rest = (
            name.replace("block_sparse_moe", "mlp")
            .replace("feed_forward", "mlp")
            .replace("mixer.experts", "mlp.experts")
            .partition(".mlp.experts.")
        )
        if is_expert and family == "GptOss":
            layer = prefix.split(".")[2]
            found |= {f"blk.{layer}.{key}": part for key, part in gpt_oss_experts(rest, values)}
        elif is_expert:
            number, projection, _ = rest.split(".")
            key = f"blk.{prefix.split('.')[2]}.{EXPERTS[projection]}.weight"
            experts.setdefault(key, {})[int(number)] = values
        elif name != "lm_head.weight" or not config.get("tie_word_embeddings"):
            # The converter gives sinks the ending that all weights have.
            name += ".weight" if name.endswith(".sinks") else ""
            found[names.get_name(name, try_suffixes=(".weight", ".bias"))] = values
    return found | {key: np.stack([parts[i] for i in sorted(parts)]) for key, parts in experts.items()}


FUSED = {
    "GPTNeoX": ("query_key_value.weight", "query_key_value.bias"), "Falcon": ("query_key_value.weight",),
    "Bloom": ("query_key_value.weight", "query_key_value.bias"),
}  # fmt: skip


def kinds_apart(values, config, family):
    """Of each group of heads a checkpoint has queries, key and value together; in a file all queries come first."""
    num_heads = one_of(config, "num_attention_heads", "n_head")
    num_groups = falcon_groups(config) if family == "Falcon" else num_heads
    groups = values.reshape(num_groups, num_heads // num_groups + 2, -1, *values.shape[1:])
    parts = (groups[:, :-2], groups[:, -2:-1], groups[:, -1:])
    return np.concatenate([part.reshape(-1, *values.shape[1:]) for part in parts])


def factors_of(name, config):
    """Falcon-H1's, which are in the weights of a file."""
    of_part = {
        "embed_tokens.weight": "embedding_multiplier", "lm_head.weight": "lm_head_multiplier",
        "o_proj.weight": "attention_out_multiplier", "out_proj.weight": "ssm_out_multiplier",
        "q_proj.weight": "attention_in_multiplier", "v_proj.weight": "attention_in_multiplier",
    }  # fmt: skip
    for end, key in of_part.items():
        if name.endswith(f"{'.' if end != 'lm_head.weight' else ''}{end}"):
            return config[key]
    if name.endswith(".k_proj.weight"):
        return config["attention_in_multiplier"] * config["key_multiplier"]
    if name.endswith(("gate_proj.weight", "down_proj.weight")):
        return config["mlp_multipliers"]["down" in name]
    if not name.endswith("in_proj.weight"):
        return 1.0
    inner, group = config["mamba_d_ssm"], config["mamba_n_groups"] * config["mamba_d_state"]
    sizes = (inner, inner, group, group, config["mamba_n_heads"])
    return np.repeat(config["ssm_multipliers"], sizes)[:, None].astype(np.float32) * config["ssm_in_multiplier"]


def with_values_in_turn(name, values, config):
    """The first value head of each key head, then the second of each, and so on."""
    num_keys, each = config["linear_num_key_heads"], config["linear_num_value_heads"] // config["linear_num_key_heads"]
    if name.endswith("out_proj.weight"):
        return with_values_in_turn("out", values.T, config).T
    first = 2 * num_keys * config["linear_key_head_dim"] if "in_proj_qkv" in name or "conv1d" in name else 0
    if name.endswith("linear_attn.norm.weight"):
        return values
    heads = values[first:].reshape(num_keys, each, -1, *values.shape[1:]).swapaxes(0, 1)
    return np.concatenate([values[:first], heads.reshape(values[first:].shape)])


SPACE = {"A_log": "ssm_a", ".D": "ssm_d", "dt_bias": "ssm_dt.bias"}


def delta_net(layer, values, config):
    """Of each key head the parts stand together in a checkpoint, in a file all queries, then all keys, and so on."""
    num_keys, num_values = config["linear_num_key_heads"], config["linear_num_value_heads"]
    key, value = config["linear_key_head_dim"], config["linear_value_head_dim"] * num_values // num_keys
    heads = values.reshape(num_keys, -1, values.shape[-1])
    parts = [each.reshape(-1, values.shape[-1]) for each in np.split(heads, [key, 2 * key, 2 * key + value], axis=1)]
    return {f"{layer}.attn_qkv.weight": np.concatenate(parts[:3]), f"{layer}.attn_gate.weight": parts[3]}


def llama4_experts(name, values):
    """Stored as `[in, out]`, gates before the others."""
    values = values.swapaxes(1, 2)
    if name.endswith("down_proj"):
        return [("ffn_down_exps", values)]
    return zip(("ffn_gate_exps", "ffn_up_exps"), np.split(values, 2, axis=1), strict=True)


def gpt_oss_experts(name, values):
    last = "bias" if name.endswith("_bias") else "weight"
    values = values if last == "bias" else values.swapaxes(1, 2)
    if name.startswith("gate_up"):
        yield f"ffn_gate_exps.{last}", values[:, ::2]
        yield f"ffn_up_exps.{last}", values[:, 1::2]
    else:
        yield f"ffn_down_exps.{last}", values


def add_tokenizer(writer, folder, vocab_size, pre="qwen2"):
    """A byte-level tokenizer.json as a converter writes it."""
    backend = Backend.from_file(str(folder / "tokenizer.json"))
    config_path = folder / "tokenizer_config.json"
    config = json.loads(config_path.read_text()) if config_path.exists() else {}
    tokens = [backend.id_to_token(i) for i in range(vocab_size)]
    added = backend.get_added_tokens_decoder()
    kinds = [5 if t is None else 1 if i not in added else 3 if added[i].special else 4 for i, t in enumerate(tokens)]
    merges = json.loads(backend.to_str())["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list([f"[PAD{i}]" if token is None else token for i, token in enumerate(tokens)])
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(merge) for merge in merges])
    for role, add in (("bos", writer.add_bos_token_id), ("eos", writer.add_eos_token_id)):
        token = config.get(f"{role}_token")
        if token:
            add(backend.token_to_id(token if isinstance(token, str) else token["content"]))
    if config.get("chat_template"):
        writer.add_chat_template(config["chat_template"])


def write_gguf(
    path, folder, family, block=FORMATS.F32, choose=None, pre="qwen2", extra=None, name=None, more=None, **options
):
    """The model of a folder as `path`, or as several shards with `split_max_tensors=`.

    Args:
        block: of all matrices. choose: name -> another format, or None. extra: more tensors. Vectors are F32.
        name: of the architecture, where it is not the family's. more: adds keys to the writer.
    """
    config = json.loads((Path(folder) / "config.json").read_text())
    assert config["architectures"] == [architecture_of(family)]
    architecture = name or architecture_in_file(config, family)
    writer = gguf.GGUFWriter(path, architecture, **options)
    add_config(writer, config, family)
    if more is not None:
        more(writer)
    if (Path(folder) / "tokenizer.json").exists():
        add_tokenizer(writer, Path(folder), config["vocab_size"], pre)
    if family == "Apertus":
        add_activations(writer, Path(folder))
    for name, values in (gguf_tensors(Path(folder), family, architecture) | (extra or {})).items():
        kind = (choose and choose(name)) or (block if values.ndim > 1 and "inp" not in name else FORMATS.F32)
        add_values(writer, name, values, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_activations(writer, folder):
    stored = load_file(next(folder.glob("*.safetensors")))
    for part in ("alpha_n", "alpha_p", "beta", "eps"):
        layers = range(num_layers(json.loads((folder / "config.json").read_text())))
        values = [stored[f"model.layers.{layer}.mlp.act_fn.{part}"].float().item() for layer in layers]
        getattr(writer, f"add_xielu_{part}")(values)


def add_values(writer, name, values, kind):
    values = np.ascontiguousarray(values, dtype=np.float32)
    if kind == FORMATS.F32:
        writer.add_tensor(name, values)
    elif kind == FORMATS.F16:
        writer.add_tensor(name, values.astype(np.float16))
    else:
        writer.add_tensor(name, quantized(values, kind), raw_dtype=kind)


def quantized(values, kind):
    """Rows of blocks. The library cannot quantize to the K formats; random blocks of the right size stand in."""
    if kind in (FORMATS.Q8_0, FORMATS.Q4_0, FORMATS.BF16):
        return gguf.quants.quantize(values, kind)
    if kind == FORMATS.MXFP4:
        return narrow(values)
    return random_blocks(values.shape, kind, float(values.std()))


def narrow(values):
    """Of matrices `[N, out, in]`: a byte of a scale, then the digits of 32 numbers, the first half in the low bits."""
    pairs, scales = mxfp4.quantize(torch.from_numpy(values).mT)
    digits = torch.stack((pairs & 15, pairs >> 4), dim=-1).flatten(-2)  # [N, out, G, 32]
    blocks = digits[..., :16] | digits[..., 16:] << 4
    return torch.cat((scales.unsqueeze(-1), blocks), dim=-1).flatten(2).numpy()


PLACES = {
    FORMATS.Q8_0: ((0,), 74, 0), FORMATS.Q4_0: ((0,), 4.6, 0), FORMATS.Q5_0: ((0,), 9.2, 0),
    FORMATS.Q4_1: ((0, 2), 4.6, -7.5), FORMATS.Q5_1: ((0, 2), 9.2, -15.5), FORMATS.IQ4_NL: ((0,), 71, 0),
    FORMATS.Q2_K: ((80, 82), 13, 1.5), FORMATS.Q3_K: ((108,), 42, 0), FORMATS.Q4_K: ((0, 2), 300, 7.5),
    FORMATS.Q5_K: ((0, 2), 600, 15.5), FORMATS.Q6_K: ((208,), 1400, 0), FORMATS.IQ4_XS: ((0,), 1300, 0),
    FORMATS.IQ2_XXS: ((0,), 50, 0),
}  # fmt: skip
"""Where the float16 of a block are, what values deviate by for factors of 1, and what the second factor is to the
first: half of a group's digits, so that values lie around zero."""


def random_blocks(shape, kind, deviation=0.15, seed=0):
    """Blocks of a K format whose values have about this deviation."""
    num_values, num_bytes = gguf.GGML_QUANT_SIZES[kind]
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (*shape[:-1], shape[-1] // num_values, num_bytes), dtype=np.uint8)
    halves, unit, middle = PLACES[kind]
    for at in halves:
        factor = deviation / unit * (1.0 if at == halves[0] else middle) * rng.uniform(0.7, 1.3, blocks.shape[:-1])
        blocks[..., at : at + 2] = factor.astype(np.float16)[..., None].view(np.uint8)
    return blocks.reshape(*shape[:-1], -1)


def as_tensor(path, name):
    """A tensor of a file as the library dequantizes it."""
    found = next(tensor for tensor in gguf.GGUFReader(path).tensors if tensor.name == name)
    return torch.from_numpy(np.array(gguf.quants.dequantize(found.data, found.tensor_type)))
