"""A checkpoint that sees pictures as llama.cpp's converter writes it: a text model's GGUF file, and its mmproj file.

Names are those of the `gguf` library's own map, keys those of its writer.
"""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
from kit.folder.gguf_files import FORMATS, add_values, permuted, write_gguf
from safetensors.torch import load_file, save_file

from lullm.config.json_file import processor_part

NAMES = {
    "Gemma3": ("Gemma3", "gemma3", "<image_soft_token>"),
    "Idefics3": ("Llama", "llama", "<image>"),
    "SmolVLM": ("Llama", "llama", "<image>"),
    "InternVL": ("Qwen2", "qwen2", "<IMG_CONTEXT>"),
    "Qwen2VL": ("Qwen2", "qwen2vl", "<|image_pad|>"),
    "Qwen2_5_VL": ("Qwen2", "qwen2vl", "<|image_pad|>"),
    "Qwen3VL": ("Qwen3", "qwen3vl", "<|image_pad|>"),
    "Qwen3_5": ("Qwen3_5", "qwen35", "<|image_pad|>"),
    "Llava": ("Llama", "llama", "[IMG]"),
    "Mistral3": ("Llama", "llama", "[IMG]"),
}
"""By architecture: the family of the text model, its architecture in GGUF, and the word for a row of a picture."""


@dataclass
class Pair:
    """model, mmproj: the two files. word: what stands in a text for a picture. checkpoint: the folder's."""

    model: Path
    mmproj: Path
    word: str
    checkpoint: object


def kind_of(checkpoint):
    return type(checkpoint.model).__name__.removesuffix("ForConditionalGeneration")


def write_pair(folder, checkpoint, block=FORMATS.F32, tower=FORMATS.F32, choose=None, edit=None):
    """Both files in `folder`.

    Args:
        block, choose: formats of the text model, see `write_gguf`. tower: of the tower's matrices. edit: changes the
            tower's writer.
    """
    kind = kind_of(checkpoint)
    family, architecture, word = NAMES[kind]
    text = folder / "text"
    text.mkdir(parents=True)
    config = json.loads((checkpoint.folder / "config.json").read_text())
    stored = load_file(checkpoint.folder / "model.safetensors")
    _write_text(text, config, stored, family, checkpoint.folder, word)

    def more(writer):
        rope = config["text_config"].get("rope_parameters", {})
        if "mrope_section" in rope:
            writer.add_rope_dimension_sections([*rope["mrope_section"], 0])

    model, mmproj = folder / "tiny-Q4_K_M.gguf", folder / "mmproj-tiny-f16.gguf"
    write_gguf(model, text, family, block, choose, pre="gpt-2", name=architecture, more=more)
    shutil.rmtree(text)
    _write_tower(mmproj, checkpoint.folder, kind, config, stored, tower, edit)
    shown = checkpoint.word.replace("<image>", word) if kind != "Gemma3" else checkpoint.word
    return Pair(model, mmproj, shown, checkpoint)


def _write_text(folder, config, stored, family, source, word):
    tensors = {}
    for name, tensor in stored.items():
        for prefix in ("model.language_model.", "language_model.model.", "model.text_model."):
            name = name.replace(prefix, "model.")
        name = name.replace("language_model.lm_head", "lm_head")
        if name.startswith(("model.embed", "model.layers", "model.norm", "lm_head")):
            tensors[name] = tensor.contiguous()
    save_file(tensors, folder / "model.safetensors")
    stated = config["text_config"] | {"architectures": [f"{family}ForCausalLM"]}
    stated["tie_word_embeddings"] = config.get("tie_word_embeddings", False)
    if family == "Llama":
        stated.pop("sliding_window", None)
    (folder / "config.json").write_text(json.dumps(stated))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_text((source / name).read_text().replace("<image>", word))


def _write_tower(path, folder, kind, config, stored, block, edit):
    vision, writer = config["vision_config"], gguf.GGUFWriter(path, "clip")
    processor = processor_part(folder, "image_processor")
    depth = vision.get("depth") or vision["num_hidden_layers"]
    _add_keys(writer, kind, config, vision, processor, depth)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, max(depth, 4))  # matrices of InternVL's connector, too
    for name, tensor in stored.items():
        for own, values in _as_converted(name, tensor.float().numpy(), kind, vision):
            if own.startswith(("v.", "mm.")):
                stored_name = own
            else:
                stored_name = names.get_name(own, try_suffixes=(".weight", ".bias"))
            if stored_name is None:
                assert "language_model" in name or "text_model" in name or name.startswith(("lm_head", "model.")), name
                continue
            is_matrix = values.ndim == 2 and "embd" not in stored_name and values.shape[-1] % 32 == 0
            kind_of_block = block if is_matrix or block == FORMATS.F16 and values.ndim > 1 else FORMATS.F32
            add_values(writer, stored_name, values, kind_of_block)
    if edit is not None:
        edit(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _first(value):
    return value[0] if isinstance(value, list) else value


def _add_keys(writer, kind, config, vision, processor, depth):
    is_qwen = kind.startswith("Qwen")
    writer.add_clip_has_vision_encoder(True)
    patch = _first(vision["patch_size"])
    edge = _first(vision.get("image_size", 560))
    if "num_position_embeddings" in vision:
        edge = int(vision["num_position_embeddings"] ** 0.5) * patch
    width = vision["embed_dim"] if kind == "Qwen2VL" else vision["hidden_size"]
    inner = vision["hidden_size"] if kind == "Qwen2VL" else vision["intermediate_size"]  # the converter's mistake
    writer.add_vision_projection_dim(config["text_config"]["hidden_size"])
    writer.add_vision_image_size(edge)
    writer.add_vision_patch_size(patch)
    writer.add_vision_embedding_length(width)
    writer.add_vision_feed_forward_length(inner)
    writer.add_vision_block_count(depth)
    writer.add_vision_head_count(vision.get("num_heads") or vision["num_attention_heads"])
    writer.add_vision_image_mean(processor["image_mean"])
    writer.add_vision_image_std(processor["image_std"])
    writer.add_vision_attention_layernorm_eps(1e-5 if is_qwen else vision.get("layer_norm_eps", 1e-5))
    if vision["hidden_act"].startswith("gelu"):
        writer.add_vision_use_gelu(True)
    elif vision["hidden_act"] == "silu":
        writer.add_vision_use_silu(True)
    types = {
        "Gemma3": "gemma3", "Idefics3": "idefics3", "SmolVLM": "idefics3", "InternVL": "internvl", "Llava": "pixtral",
        "Mistral3": "pixtral", "Qwen2VL": "qwen2vl_merger", "Qwen2_5_VL": "qwen2.5vl_merger",
        "Qwen3VL": "qwen3vl_merger", "Qwen3_5": "qwen3vl_merger",
    }  # fmt: skip
    writer.add_clip_projector_type(types[kind])
    if kind == "Gemma3":
        writer.add_vision_projector_scale_factor(edge // patch // int(config["mm_tokens_per_image"] ** 0.5))
    elif types[kind] == "idefics3":
        writer.add_vision_projector_scale_factor(config["scale_factor"])
        writer.add_vision_preproc_image_size(processor["size"]["longest_edge"])
    elif kind == "InternVL":
        writer.add_vision_projector_scale_factor(round(1 / config["downsample_ratio"]))
        writer.add_vision_preproc_min_tiles(processor["min_patches"])
        writer.add_vision_preproc_max_tiles(processor["max_patches"])
    elif kind == "Mistral3":
        writer.add_vision_spatial_merge_size(config["spatial_merge_size"])
    elif is_qwen:
        # Released files say no bounds, and no window; the tiny model's are smaller than those of released ones.
        writer.add_vision_spatial_merge_size(vision["spatial_merge_size"])
        writer.add_vision_min_pixels(processor["size"]["shortest_edge"])
        writer.add_vision_max_pixels(processor["size"]["longest_edge"])
    if kind == "Qwen2_5_VL":
        writer.add_vision_n_wa_pattern(vision["fullatt_block_indexes"][0] + 1)
        writer.add_vision_window_size(vision["window_size"])
    if kind.startswith("Qwen3"):
        writer.add_vision_is_deepstack_layers(
            [layer in vision.get("deepstack_visual_indexes", ()) for layer in range(depth)]
        )


def _as_converted(name, values, kind, vision):
    """Names as the library's map knows them, and the values in a file's order."""
    name = name.removeprefix("model.") if kind.startswith("Qwen3") else name
    if kind == "Gemma3":
        name = name.replace("vision_tower.", "vision_tower.vision_model.").replace("_weight", ".weight")
        values = values + 1 if "soft_emb_norm" in name else values
    if kind == "InternVL":
        name = name.replace("vision_tower.", "model.vision_tower.")
        places = {"layer_norm": "0", "linear_1": "1", "linear_2": "3"}
        for part, number in places.items():
            name = name.replace(f"multi_modal_projector.{part}.", f"mlp1.{number}.")
        if name.endswith(("lambda_1", "lambda_2", "position_embeddings")):
            name += ".weight"
    if name.endswith(("q_proj.weight", "k_proj.weight")) and vision.get("model_type") == "pixtral":
        values = permuted(values, vision["num_attention_heads"]) if "vision_tower" in name else values
    if ".patch_embed.proj.weight" in name:
        yield "v.patch_embd.weight", np.ascontiguousarray(values[:, :, 0])
        yield "v.patch_embd.weight.1", np.ascontiguousarray(values[:, :, 1])
    elif ".attn.qkv." in name and kind in ("Qwen2VL", "Qwen2_5_VL"):
        for part, third in zip("qkv", np.split(values, 3), strict=True):
            yield name.replace("qkv", part), third
    elif "deepstack_merger_list" in name:
        number, part, last = name.split(".")[2:]
        layer = vision["deepstack_visual_indexes"][int(number)]
        yield f"v.deepstack.{layer}.{part.removeprefix('linear_')}.{last}", values
    elif name.startswith("visual.merger.") and kind.startswith("Qwen3"):
        part, last = name.split(".")[2:]
        yield f"{ {'norm': 'v.post_ln', 'linear_fc1': 'mm.0', 'linear_fc2': 'mm.2'}[part] }.{last}", values
    elif name == "visual.patch_embed.proj.bias":
        yield "v.patch_embd.bias", values
    else:
        yield name, values
