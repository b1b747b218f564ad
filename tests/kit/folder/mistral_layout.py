"""A folder of transformers' layout, written as Mistral releases it: params.json and consolidated.safetensors."""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from text import tekken_prompts

_NORMS = {"input_layernorm": "attention_norm", "post_attention_layernorm": "ffn_norm"}
_MLP = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}
_LATENT = {
    "q_a_proj": "wq_a", "q_b_proj": "wq_b", "kv_b_proj": "wkv_b", "kv_a_proj_with_mqa": "wkv_a_with_mqa",
    "q_a_layernorm": "q_a_norm", "kv_a_layernorm": "kv_a_norm",
}  # fmt: skip
_OUTER = {
    "embed_tokens": "tok_embeddings", "norm": "norm", "lm_head": "output", "linear_1": "vision_language_adapter.w_in",
    "linear_2": "vision_language_adapter.w_out",
}  # fmt: skip


def write_own_layout(source: Path, out: Path) -> Path:
    """The model of the folder `source` in the folder `out`. A tekken.json of 301 tokens is written, too."""
    out.mkdir(exist_ok=True)
    config = json.loads((source / "config.json").read_text())
    text = config.get("text_config", config)
    tower = config.get("vision_config")
    own: dict[str, torch.Tensor] = {}
    for name, tensor in load_file(source / "model.safetensors").items():
        for part, values in _apart(name, tensor):
            own[_own_name(part)] = _neighbours(part, values, text, tower)
    save_file(own, out / "consolidated.safetensors")
    (out / "params.json").write_text(json.dumps(params_of(config, text, tower)))
    (out / "tekken.json").write_text(json.dumps(tekken_prompts.tekken(13)))
    for file in source.glob("preprocessor_config.json"):
        shutil.copyfile(file, out / file.name)
    return out


def params_of(config: dict[str, Any], text: dict[str, Any], tower: dict[str, Any] | None) -> dict[str, Any]:
    rope = text["rope_parameters"]
    params = {
        "dim": text["hidden_size"], "n_layers": text["num_hidden_layers"], "n_heads": text["num_attention_heads"],
        "n_kv_heads": text["num_key_value_heads"], "head_dim": text["head_dim"],
        "hidden_dim": text["intermediate_size"], "norm_eps": text["rms_norm_eps"], "vocab_size": text["vocab_size"],
        "rope_theta": rope["rope_theta"], "max_position_embeddings": text["max_position_embeddings"],
        "dtype": "float32", "tied_embeddings": config["tie_word_embeddings"],
    }  # fmt: skip
    if text.get("sliding_window") is not None:
        kinds = text.get("layer_types")
        window = text["sliding_window"]
        by_layer = [window if kind == "sliding_attention" else None for kind in kinds or ()]
        params["sliding_window"] = by_layer or window
    if rope["rope_type"] == "yarn":
        trained = rope["original_max_position_embeddings"]
        params["yarn"] = {
            "factor": rope["factor"], "original_max_position_embeddings": trained, "beta": rope.get("beta_fast", 32),
            "alpha": rope.get("beta_slow", 1), "apply_scale": not rope.get("mscale_all_dim"),
        }  # fmt: skip
        if "llama_4_scaling_beta" in rope:
            beta = rope["llama_4_scaling_beta"]
            params["llama_4_scaling"] = {"original_max_position_embeddings": trained, "beta": beta}
    if "num_local_experts" in text:
        params["moe"] = {"num_experts": text["num_local_experts"], "num_experts_per_tok": text["num_experts_per_tok"]}
    if "n_routed_experts" in text:
        params |= {name: text[name] for name in ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim")}
        params |= {"v_head_dim": text["v_head_dim"], "n_kv_heads": text["num_attention_heads"]}
        params["moe"] = {
            "num_experts": text["n_routed_experts"], "num_experts_per_tok": text["num_experts_per_tok"],
            "expert_hidden_dim": text["moe_intermediate_size"], "first_k_dense_replace": text["first_k_dense_replace"],
            "num_shared_experts": text["n_shared_experts"], "routed_scale": text["routed_scaling_factor"],
            "num_expert_groups": text["n_group"], "num_expert_groups_per_tok": text["topk_group"], "route_every_n": 1,
        }  # fmt: skip
    if tower is not None:
        names = ("hidden_size", "num_channels", "image_size", "patch_size", "intermediate_size", "num_hidden_layers",
                 "num_attention_heads")  # fmt: skip
        params["vision_encoder"] = {name: tower[name] for name in names} | {
            "rope_theta": tower["rope_parameters"]["rope_theta"], "max_image_size": tower["image_size"],
            "image_token_id": config["image_token_index"], "adapter_bias": config["multimodal_projector_bias"],
        }  # fmt: skip
        if "spatial_merge_size" in config:
            params["vision_encoder"] |= {
                "mm_projector_id": "patch_merge", "add_pre_mm_projector_layer_norm": True,
                "spatial_merge_size": config["spatial_merge_size"],
            }  # fmt: skip
    return params


def _apart(name: str, tensor: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
    """Tensors that transformers stacks, one by one."""
    if name.endswith("experts.gate_up_proj"):
        stem = name.removesuffix("gate_up_proj")
        halves = [matrix.chunk(2) for matrix in tensor]
        parts = ("gate_proj", "up_proj")
        return [(f"{stem}{i}.{part}.weight", half.clone()) for i, pair in enumerate(halves)
                for part, half in zip(parts, pair, strict=True)]  # fmt: skip
    if name.endswith("experts.down_proj"):
        stem = name.removesuffix("down_proj")
        return [(f"{stem}{i}.down_proj.weight", matrix.clone()) for i, matrix in enumerate(tensor)]
    return [(name, tensor)]


def _own_name(name: str) -> str:
    if "vision_tower" in name:
        name = "vision_encoder." + name.partition("vision_tower.")[2]
    *path, module, last = name.removeprefix("model.").removeprefix("language_model.").removeprefix("model.").split(".")
    path = [each for each in path if each not in ("multi_modal_projector", "language_model", "model")]
    if module in ("q_proj", "k_proj", "v_proj", "o_proj"):
        module = f"w{module[0]}"
    module = _LATENT.get(module) or _MLP.get(module) or _NORMS.get(module) or module
    if not path or path == ["patch_merger"]:
        is_projector = "multi_modal_projector" in name and module == "norm"
        module = "pre_mm_projector_norm" if is_projector else _OUTER.get(module, module)
    path = ["attention" if each == "self_attn" else each for each in path]
    if path[-1:] == ["mlp"] and module in ("w1", "w2", "w3"):
        path[-1] = "feed_forward"
    path = [each for each in path if each not in ("mlp", "block_sparse_moe")]
    return ".".join([*path, module, last])


def _neighbours(name: str, tensor: torch.Tensor, text: dict[str, Any], tower: dict[str, Any] | None) -> torch.Tensor:
    """Rows of queries and keys in pairs that are rotated together."""
    kind = name.split(".")[-2]
    if kind not in ("q_proj", "k_proj"):
        return tensor
    heads = text["num_attention_heads" if kind == "q_proj" else "num_key_value_heads"]
    if "vision_tower" in name and tower is not None:
        heads = tower["num_attention_heads"]
    found = torch.empty_like(tensor)
    size = len(tensor) // heads
    for head in range(heads):
        rows = tensor[head * size : (head + 1) * size]
        found[head * size : (head + 1) * size : 2] = rows[: size // 2]
        found[head * size + 1 : (head + 1) * size : 2] = rows[size // 2 :]
    return found
