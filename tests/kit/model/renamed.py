"""Checkpoints of families that transformers has no class for: those of another class, in the layout that is published.

The class of such a family computes as its base does, and saves itself under the published names.
"""

import copy
import json
import re
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

Data = dict[str, Any]
Tensors = dict[str, torch.Tensor]


def _same(data: Data) -> Data:
    return data


@dataclass(frozen=True)
class Renamed:
    """How a family's files differ from those of `base`, a class of transformers.

    Args:
        keys: published names of the keys of a `config.json`, by those of `base`.
        names: patterns of the names of tensors, and what is published in their place, in order.
        says: what a published file says beside that. leaves_out: keys of `base` that it lacks.
        publish: more that is done with a published file. read_back: undone.
        merge: (tensors by `base`'s names, its `config.json`) -> tensors, before they are renamed.
        compute: gives the class that computes, of the base class. suffix: of the architecture's name.
        beside: tensors that a file holds, and that nobody reads, by a name in a layer or a whole one.
    """

    base: str
    keys: dict[str, str] = field(default_factory=dict)
    names: tuple[tuple[str, str], ...] = ()
    says: Data = field(default_factory=dict)
    leaves_out: tuple[str, ...] = ()
    publish: Callable[[Data], Data] = _same
    read_back: Callable[[Data], Data] = _same
    merge: Callable[[Tensors, Data], Tensors] = lambda tensors, _: tensors
    compute: Callable[[Any], Any] = lambda base: base
    suffix: str = "ForCausalLM"
    beside: tuple[str, ...] = ()

    def config(self, data: Data, architecture: str) -> Data:
        """The published `config.json` of one by `base`."""
        data = {key: value for key, value in data.items() if key not in self.leaves_out}
        rope = dict(data.pop("rope_parameters", None) or {})
        if "rope_theta" in rope:
            data["rope_theta"] = rope.pop("rope_theta")
        if rope.get("rope_type", "default") != "default":
            data["rope_scaling"] = rope
        data = {self.keys.get(key, key): value for key, value in data.items()}
        return self.publish(data | self.says | {"architectures": [architecture]})

    def options(self, data: Data) -> Data:
        """`base`'s options of a published `config.json`."""
        back = {published: key for key, published in self.keys.items()}
        found = {back.get(key, key): value for key, value in self.read_back(dict(data)).items()}
        return {key: value for key, value in found.items() if key not in ("architectures", "auto_map", "model_type")}

    def tensors(self, tensors: Tensors, data: Data) -> Tensors:
        """The published tensors. data: `base`'s `config.json`."""
        found = {self.name(name): tensor for name, tensor in self.merge(tensors, data).items()}
        assert len(found) == len(self.merge(tensors, data)), "two names became one"
        return found | {name: torch.ones(4) for name in self.beside}

    def name(self, name: str) -> str:
        for pattern, replacement in self.names:
            name = re.sub(pattern, replacement, name)
        return name


def grouped(tensors: Tensors, data: Data) -> Tensors:
    """Queries of a group, its key and its value together."""
    num_groups = data["num_key_value_heads"]

    def merged(parts: list[torch.Tensor]) -> torch.Tensor:
        rows = [part.view(num_groups, -1, *part.shape[1:]) for part in parts]
        return torch.cat(rows, 1).flatten(0, 1)

    return _merged(tensors, ("q_proj", "k_proj", "v_proj"), "qkv_proj", merged)


def _merged(
    tensors: Tensors, parts: tuple[str, ...], into: str, merge: Callable[[list[torch.Tensor]], torch.Tensor]
) -> Tensors:
    """`parts` of every module as one tensor."""
    found: Tensors = {}
    for name, tensor in tensors.items():
        part = next((part for part in parts if f".{part}." in name), None)
        if part is None:
            found[name] = tensor
        elif part == parts[0]:
            found[name.replace(part, into)] = merge([tensors[name.replace(part, each)] for each in parts]).contiguous()
    return found


def joined(into: str) -> Callable[[Tensors, Data], Tensors]:
    """All queries, all keys and all values as one tensor of this name."""
    return lambda tensors, _: _merged(tensors, ("q_proj", "k_proj", "v_proj"), into, torch.cat)


def _baichuan(base: Any) -> Any:
    """Scores fall with distance, if the config says `model_max_length`; rows of the head have the length 1, if it says
    `z_loss_weight`.
    """
    from transformers.modeling_outputs import CausalLMOutputWithPast

    class NoRotation(torch.nn.Module):
        def __init__(self, size: int):
            super().__init__()
            self.size = size

        def forward(self, hidden: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            shape = (*position_ids.shape, self.size)
            return torch.ones(shape), torch.zeros(shape)

    class Baichuan(base):  # type: ignore[misc]
        def __init__(self, config: Any):
            super().__init__(config)
            self.slopes: torch.Tensor | None = None
            if getattr(config, "model_max_length", None):
                count = config.num_attention_heads
                assert count & (count - 1) == 0
                self.slopes = 2.0 ** (-8.0 * torch.arange(1, count + 1) / count)
                self.model.rotary_emb = NoRotation(config.head_dim)

        def forward(self, input_ids: Any = None, **options: Any) -> Any:
            mask = None
            if self.slopes is not None:
                places = torch.arange(input_ids.shape[1])
                biases = self.slopes[:, None, None] * places
                mask = biases.where(places <= places[:, None], torch.finfo(torch.float32).min)[None]
            hidden = self.model(input_ids, attention_mask=mask, use_cache=False).last_hidden_state
            head = self.lm_head.weight
            if getattr(self.config, "z_loss_weight", None) is not None:
                head = head / head.norm(dim=1, keepdim=True)
            return CausalLMOutputWithPast(logits=hidden @ head.T)

    return Baichuan


def _baichuan_positions(data: Data) -> Data:
    """Files of models without a rotation have their length under another key."""
    left_out = "max_position_embeddings" if "model_max_length" in data else None
    return {key: value for key, value in data.items() if key not in (left_out, "rope_theta")}


def _without_positions(data: Data) -> Data:
    """As `_baichuan` reads the file of a model with a rotation, which may say both."""
    assert "max_position_embeddings" in data
    return {key: value for key, value in data.items() if key != "model_max_length"}


def _minicpm_factors(data: Data) -> Data:
    """Granite's factors as MiniCPM's."""
    scores = data.pop("attention_multiplier")
    assert scores == data["head_dim"] ** -0.5
    depth = data.pop("residual_multiplier") * data["num_hidden_layers"] ** 0.5
    base = data["hidden_size"] / data.pop("logits_scaling")
    assert base == int(base)
    return data | {"scale_emb": data.pop("embedding_multiplier"), "scale_depth": depth, "dim_model_base": int(base)}


_INTERNLM2_NAMES = (
    (r"^model\.embed_tokens\.", "model.tok_embeddings."),
    (r"^lm_head\.", "output."),
    (r"\.self_attn\.qkv_proj\.", ".attention.wqkv."),
    (r"\.self_attn\.o_proj\.", ".attention.wo."),
    (r"\.input_layernorm\.", ".attention_norm."),
    (r"\.post_attention_layernorm\.", ".ffn_norm."),
    (r"\.mlp\.gate_proj\.", ".feed_forward.w1."),
    (r"\.mlp\.down_proj\.", ".feed_forward.w2."),
    (r"\.mlp\.up_proj\.", ".feed_forward.w3."),
)
_EXAONE_NAMES = (
    (r"^model\.embed_tokens\.", "transformer.wte."),
    (r"^model\.norm\.", "transformer.ln_f."),
    (r"^model\.layers\.", "transformer.h."),
    (r"\.input_layernorm\.", ".ln_1."),
    (r"\.post_attention_layernorm\.", ".ln_2."),
    (r"\.self_attn\.o_proj\.", ".attn.attention.out_proj."),
    (r"\.self_attn\.", ".attn.attention."),
    (r"\.mlp\.gate_proj\.", ".mlp.c_fc_0."),
    (r"\.mlp\.up_proj\.", ".mlp.c_fc_1."),
    (r"\.mlp\.down_proj\.", ".mlp.c_proj."),
)
_CHATGLM_NAMES = (
    (r"^model\.embed_tokens\.", "transformer.embedding.word_embeddings."),
    (r"^model\.norm\.", "transformer.encoder.final_layernorm."),
    (r"^model\.layers\.", "transformer.encoder.layers."),
    (r"^lm_head\.", "transformer.output_layer."),
    (r"\.self_attn\.query_key_value\.", ".self_attention.query_key_value."),
    (r"\.self_attn\.o_proj\.", ".self_attention.dense."),
    (r"\.mlp\.gate_up_proj\.", ".mlp.dense_h_to_4h."),
    (r"\.mlp\.down_proj\.", ".mlp.dense_4h_to_h."),
)
_CHATGLM_SAYS = {
    "add_bias_linear": False, "rmsnorm": True, "post_layer_norm": True, "multi_query_attention": True,
    "original_rope": True, "apply_residual_connection_post_layernorm": False, "quantization_bit": 0,
}  # fmt: skip


def _rope_ratio(data: Data) -> Data:
    return data | {"rope_ratio": data.pop("rope_theta") / 1e4, "vocab_size": data["padded_vocab_size"]}


def _rope_theta(data: Data) -> Data:
    return data | {"rope_theta": 1e4 * data.get("rope_ratio", 1.0)}


_QWEN_NAMES = (
    (r"^model\.embed_tokens\.", "transformer.wte."),
    (r"^model\.norm\.", "transformer.ln_f."),
    (r"^model\.layers\.", "transformer.h."),
    (r"\.input_layernorm\.", ".ln_1."),
    (r"\.post_attention_layernorm\.", ".ln_2."),
    (r"\.self_attn\.c_attn\.", ".attn.c_attn."),
    (r"\.self_attn\.o_proj\.", ".attn.c_proj."),
    (r"\.mlp\.gate_proj\.", ".mlp.w2."),
    (r"\.mlp\.up_proj\.", ".mlp.w1."),
    (r"\.mlp\.down_proj\.", ".mlp.c_proj."),
)
_QWEN2_WINDOWS = ("use_sliding_window", "sliding_window", "max_window_layers", "layer_types")
_QWEN_SAYS = {
    "no_bias": True, "use_dynamic_ntk": True, "use_logn_attn": True, "rotary_pct": 1.0, "scale_attn_weights": True,
    "use_flash_attn": "auto", "bf16": False,
}  # fmt: skip


def _both_sizes(data: Data) -> Data:
    """Gates and ups as one size; a trained length that is all positions."""
    sizes = {"intermediate_size": 2 * data["intermediate_size"], "seq_length": data["max_position_embeddings"]}
    return data | sizes | {"rotary_emb_base": data.pop("rope_theta")}


def _one_size(data: Data) -> Data:
    own = {"intermediate_size": data["intermediate_size"] // 2, "num_key_value_heads": data["num_attention_heads"]}
    return data | own | {"rope_theta": data.pop("rotary_emb_base")}


def _decilm(base: Any) -> Any:
    """Layers by `block_configs`: other numbers of key heads, other MLPs, a matrix in place of attention, or no part."""
    from transformers.models.llama.modeling_llama import LlamaAttention, LlamaMLP

    class Matrix(torch.nn.Module):
        def __init__(self, config: Any):
            super().__init__()
            self.linear_attn = torch.nn.Linear(config.hidden_size, config.hidden_size, config.attention_bias)

        def forward(self, hidden_states: torch.Tensor, **options: Any) -> tuple[torch.Tensor, None]:
            return self.linear_attn(hidden_states), None

    class NoAttention(torch.nn.Module):
        def forward(self, hidden_states: torch.Tensor, **options: Any) -> tuple[torch.Tensor, None]:
            return torch.zeros_like(hidden_states), None

    class NoMLP(torch.nn.Module):
        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            return torch.zeros_like(hidden)

    def changed(config: Any, **sizes: int) -> Any:
        own = copy.deepcopy(config)
        for name, size in sizes.items():
            setattr(own, name, size)
        return own

    class DeciLM(base):  # type: ignore[misc]
        def __init__(self, config: Any):
            super().__init__(config)
            heads = getattr(config, "num_key_value_heads_per_layer", None)
            for number, layer in enumerate(self.model.layers):
                if heads is not None:
                    layer.self_attn = LlamaAttention(changed(config, num_key_value_heads=heads[number]), number)
                    continue
                attention, mlp = (config.block_configs[number][part] for part in ("attention", "ffn"))
                if attention.get("replace_with_linear"):
                    layer.self_attn = Matrix(config)
                elif attention.get("no_op"):
                    layer.self_attn = NoAttention()
                else:
                    count = config.num_attention_heads // attention["n_heads_in_group"]
                    layer.self_attn = LlamaAttention(changed(config, num_key_value_heads=count), number)
                size = -(-int(2 * (mlp.get("ffn_mult") or 0) * config.hidden_size / 3) // 256) * 256
                if not mlp.get("no_op"):
                    layer.mlp = LlamaMLP(changed(config, intermediate_size=mlp.get("intermediate_size") or size))
                else:
                    layer.mlp = NoMLP()

    return DeciLM


def _without_unused_norms(tensors: Tensors, data: Data) -> Tensors:
    """A part that a layer lacks has no norm."""
    unused = set()
    for number, block in enumerate(data.get("block_configs") or ()):
        for part, norm in (("attention", "input_layernorm"), ("ffn", "post_attention_layernorm")):
            if block[part].get("no_op"):
                unused.add(f"model.layers.{number}.{norm}.weight")
    return {name: tensor for name, tensor in tensors.items() if name not in unused}


def _by_block(data: Data) -> Data:
    """Files with `block_configs` have no sizes for all layers."""
    sizes = ("num_key_value_heads", "intermediate_size") if "block_configs" in data else ("num_key_value_heads",)
    return data | dict.fromkeys(sizes)


def _bailing(base: Any) -> Any:
    """Qwen3's experts without norms on heads and a bias behind attention, beside shared ones."""
    from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeMLP

    def beside_shared(self: Any, hidden: torch.Tensor) -> torch.Tensor:
        routed = type(self).forward(self, hidden)
        return routed + self.shared_experts(hidden)

    class Bailing(base):  # type: ignore[misc]
        def __init__(self, config: Any):
            super().__init__(config)
            for layer in self.model.layers:
                attention = layer.self_attn
                attention.q_norm = attention.k_norm = torch.nn.Identity()
                attention.o_proj = torch.nn.Linear(attention.o_proj.in_features, config.hidden_size, bias=False)
                if hasattr(layer.mlp, "experts") and config.num_shared_experts:
                    size = config.num_shared_experts * config.moe_intermediate_size
                    layer.mlp.shared_experts = Qwen3MoeMLP(config, intermediate_size=size)
                    layer.mlp.forward = types.MethodType(beside_shared, layer.mlp)

    return Bailing


_BAILING_NAMES = (
    (r"^model\.embed_tokens\.", "model.word_embeddings."),
    (r"\.self_attn\.q_norm\.", ".attention.query_layernorm."),
    (r"\.self_attn\.k_norm\.", ".attention.key_layernorm."),
    (r"\.self_attn\.o_proj\.", ".attention.dense."),
    (r"\.self_attn\.", ".attention."),
    (r"\.mlp\.gate\.e_score_correction_bias$", ".mlp.gate.expert_bias"),
)
_BAILING_SAYS = {
    "use_bias": False, "use_rmsnorm": True, "norm_head": False, "norm_softmax": False, "embedding_dropout": 0.0,
    "output_dropout": 0.0, "router_dtype": "fp32",
}  # fmt: skip


def _dense_first(data: Data) -> Data:
    """The first layers have no experts."""
    dense = data.pop("mlp_only_layers")
    assert dense == list(range(len(dense)))
    return data | {"first_k_dense_replace": len(dense)}


def _stated_share(data: Data) -> Data:
    """The part of a head that is rotated, as a share, unless it is stated as a number of elements."""
    return data if "rotary_dim" in data else data | {"partial_rotary_factor": 0.5}


_FREQUENCIES = "model.layers.0.self_attn.rotary_emb.inv_freq"
RENAMED = {
    "Aquila": Renamed("Llama", beside=(_FREQUENCIES,)),
    "Baichuan": Renamed(
        "Llama",
        leaves_out=("attention_bias", "mlp_bias", "num_key_value_heads"),
        publish=_baichuan_positions,
        read_back=_without_positions,
        merge=joined("W_pack"),
        compute=_baichuan,
    ),
    "BailingMoe": Renamed(
        "Qwen3Moe",
        {"attention_bias": "use_qkv_bias", "num_local_experts": "num_experts"},
        _BAILING_NAMES,
        _BAILING_SAYS,
        ("decoder_sparse_step", "use_sliding_window", "sliding_window", "max_window_layers"),
        _dense_first,
        merge=joined("query_key_value"),
        compute=_bailing,
    ),
    "BailingMoeV2": Renamed(
        "Glm4Moe",
        {
            "attention_bias": "use_qkv_bias",
            "n_routed_experts": "num_experts",
            "num_local_experts": "num_experts",
            "n_shared_experts": "num_shared_experts",
        },
        _BAILING_NAMES,
        _BAILING_SAYS
        | {"score_function": "sigmoid", "moe_router_enable_expert_bias": True, "num_nextn_predict_layers": 1},
        ("partial_rotary_factor",),
        _stated_share,
        merge=joined("query_key_value"),
        beside=("model.layers.3.eh_proj.weight",),
    ),
    "ChatGLM": Renamed(
        "Glm",
        {
            "num_hidden_layers": "num_layers",
            "vocab_size": "padded_vocab_size",
            "intermediate_size": "ffn_hidden_size",
            "head_dim": "kv_channels",
            "rms_norm_eps": "layernorm_epsilon",
            "max_position_embeddings": "seq_length",
            "num_key_value_heads": "multi_query_group_num",
            "attention_bias": "add_qkv_bias",
        },
        _CHATGLM_NAMES,
        _CHATGLM_SAYS,
        ("hidden_act", "partial_rotary_factor"),
        _rope_ratio,
        _rope_theta,
        joined("query_key_value"),
        suffix="ForConditionalGeneration",
        beside=("transformer.rotary_pos_emb.inv_freq",),
    ),
    "DeciLM": Renamed(
        "Llama",
        publish=_by_block,
        read_back=lambda data: {key: value for key, value in data.items() if value is not None},
        merge=_without_unused_norms,
        compute=_decilm,
    ),
    "Exaone": Renamed(
        "Llama",
        {"num_hidden_layers": "num_layers", "rms_norm_eps": "layer_norm_epsilon", "hidden_act": "activation_function"},
        _EXAONE_NAMES,
        {"embed_dropout": 0.0},
        beside=("transformer.h.0.attn.attention.rotary_emb.inv_freq",),
    ),
    "InternLM": Renamed("Llama", {"attention_bias": "bias"}, leaves_out=("mlp_bias",), beside=(_FREQUENCIES,)),
    "InternLM2": Renamed(
        "Llama",
        {"attention_bias": "bias"},
        _INTERNLM2_NAMES,
        {"attn_implementation": "eager"},
        ("mlp_bias",),
        merge=grouped,
    ),
    "MiMo": Renamed(
        "Qwen2",
        says={"attention_bias": True, "num_nextn_predict_layers": 1},
        beside=("model.mtp_layers.0.input_proj.weight", "model.mtp_layers.0.self_attn.q_proj.bias"),
    ),
    "MiniCPM": Renamed("Granite", publish=_minicpm_factors, says={"mup_denominator": 32}),
    "Orion": Renamed(
        "StableLm",
        {"layer_norm_eps": "rms_norm_eps"},
        leaves_out=("use_qkv_bias", "use_parallel_residual", "qk_layernorm", "partial_rotary_factor", "hidden_dropout"),
        publish=lambda data: data | {"rope_scaling": None},
    ),
    "QWen": Renamed(
        "Qwen2",
        {"rms_norm_eps": "layer_norm_epsilon", "head_dim": "kv_channels"},
        _QWEN_NAMES,
        _QWEN_SAYS,
        (
            "hidden_act",
            "use_sliding_window",
            "sliding_window",
            "max_window_layers",
            "num_key_value_heads",
            "layer_types",
        ),
        _both_sizes,
        _one_size,
        joined("c_attn"),
        suffix="LMHeadModel",
        beside=("transformer.rotary_emb.inv_freq",),
    ),
    "Xverse": Renamed("Llama", says={"max_tokenizer_truncation": 6144}, leaves_out=("attention_bias", "mlp_bias")),
}
"""By family."""
_FAMILIES = {f"{family}{renamed.suffix}": family for family, renamed in RENAMED.items()}


def renamed_of(architecture: str) -> Renamed | None:
    """Of an architecture in `config.json`; None: transformers has a class for it."""
    family = _FAMILIES.get(architecture)
    return None if family is None else RENAMED[family]


def renamed_class(architecture: str) -> Any:
    """A class that computes as the base does and saves itself as published."""
    import transformers

    renamed = renamed_of(architecture)
    assert renamed is not None
    base: Any = renamed.compute(getattr(transformers, f"{renamed.base}ForCausalLM"))

    def save_pretrained(self: Any, folder: Any, **options: Any) -> None:
        base.save_pretrained(self, folder, **options)
        path, file = Path(folder) / "config.json", Path(folder) / "model.safetensors"
        data = json.loads(path.read_text())
        path.write_text(json.dumps(renamed.config(data, architecture)))
        save_file(renamed.tensors(load_file(file), data), file, {"format": "pt"})

    return type(architecture, (base,), {"save_pretrained": save_pretrained, "config_class": base.config_class})
