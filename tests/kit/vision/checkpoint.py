"""Tiny random checkpoints that see pictures, as people download them, with transformers' model and processor."""

import importlib
import json
import random
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from kit.folder.checkpoint import TEXT
from kit.model.renamed import RENAMED
from PIL import Image

from lullm.config.vision import picture as settings_of_pictures
from lullm.config.vision.picture import SOFT_TOKENS

VOCAB_SIZE = 384
LANGUAGE = {
    "vocab_size": VOCAB_SIZE, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 1024,
    "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 2, "model_type": "llama",
}  # fmt: skip
CLIP = {
    "model_type": "clip_vision_model", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
    "num_attention_heads": 2, "image_size": 30, "patch_size": 6,
}  # fmt: skip
SIGLIP = CLIP | {"model_type": "siglip_vision_model", "vision_use_head": False}
SHUFFLED = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 26,
    "patch_size": 4,
}  # fmt: skip
INTERNVIT = {
    "model_type": "internvl_vision", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 2, "image_size": [24, 24], "patch_size": [6, 6], "attention_bias": True,
}  # fmt: skip
QWEN2_VL = {
    "depth": 3, "embed_dim": 32, "hidden_size": 64, "mlp_ratio": 2, "num_heads": 2, "patch_size": 4,
}  # fmt: skip
QWEN2_5_VL = {
    "depth": 3, "hidden_size": 32, "out_hidden_size": 64, "intermediate_size": 48, "num_heads": 2, "patch_size": 4,
    "window_size": 16, "fullatt_block_indexes": [1],
}  # fmt: skip
QWEN3_VL = {
    "depth": 3, "hidden_size": 32, "out_hidden_size": 64, "intermediate_size": 48, "num_heads": 2, "patch_size": 4,
    "num_position_embeddings": 49, "deepstack_visual_indexes": [0],
}  # fmt: skip
PIXTRAL = {
    "model_type": "pixtral", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
    "num_attention_heads": 2, "image_size": 48, "patch_size": 4,
}  # fmt: skip
GLM4V = {
    "depth": 3, "hidden_size": 32, "out_hidden_size": 64, "intermediate_size": 48, "num_heads": 2, "patch_size": 4,
    "image_size": 28,
}  # fmt: skip
PADDLE = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 2, "image_size": 30,
    "patch_size": 4,
}  # fmt: skip
GLM_EXPERTS = {
    "num_hidden_layers": 3, "n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
    "routed_scaling_factor": 1.5,
}  # fmt: skip
GLMS = {
    "Glm4v": {"model_type": "glm4v_text"},
    "Glm46V": {"model_type": "glm4v_text"},
    "Glm4vMoe": {"model_type": "glm4v_moe_text"} | GLM_EXPERTS,
    "GlmOcr": {"model_type": "glm_ocr_text"},
}
QWEN3_5 = {key: value for key, value in QWEN3_VL.items() if key != "deepstack_visual_indexes"}
QWENS = {
    "Qwen2VL": QWEN2_VL, "Qwen2_5_VL": QWEN2_5_VL, "Qwen3VL": QWEN3_VL, "Qwen3VLMoe": QWEN3_VL, "Qwen3_5": QWEN3_5,
    "Qwen3_5Moe": QWEN3_5,
}  # fmt: skip
QWEN3_5_TEXT = {
    "model_type": "qwen3_5_text", "full_attention_interval": 2, "num_hidden_layers": 4, "linear_num_key_heads": 2,
    "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
}  # fmt: skip
QWEN_TEXTS = {
    "Qwen2VL": {"model_type": "qwen2_vl_text"},
    "Qwen2_5_VL": {"model_type": "qwen2_5_vl_text"},
    "Qwen3VL": {"model_type": "qwen3_vl_text"},
    "Qwen3VLMoe": {
        "model_type": "qwen3_vl_moe_text", "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    },
    "Qwen3_5": QWEN3_5_TEXT,
    "Qwen3_5Moe": QWEN3_5_TEXT | {
        "model_type": "qwen3_5_moe_text", "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 40,
    },
}  # fmt: skip
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<image>", "<fake_token_around_image>", "<end_of_utterance>"]
LLAVA_TEMPLATE = (
    "{% for message in messages %}{{ message['role'].upper() + ': ' }}"
    "{% for part in message['content'] | selectattr('type', 'equalto', 'image') %}{{ '<image>\n' }}{% endfor %}"
    "{% for part in message['content'] | selectattr('type', 'equalto', 'text') %}{{ part['text'] + ' ' }}{% endfor %}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)
INTERNVL_TEMPLATE = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n'}}"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for content in message['content'] %}"
    "{% if content['type'] == 'image' %}{{ '<image>\n' }}{% elif content['type'] == 'video' %}{{ '<video>\n' }}"
    "{% elif content['type'] == 'text' %}{{ content['text'] }}{% endif %}{% endfor %}{% endif %}{{'<|im_end|>\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{'<|im_start|>assistant\n' }}{% endif %}"
)
QWEN_TEMPLATE = (
    "{% set seen = namespace(pictures=0) %}{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if 'image' in part or 'image_url' in part or part['type'] == 'image' %}"
    "{% set seen.pictures = seen.pictures + 1 %}{% if add_vision_id %}Picture {{ seen.pictures }}: {% endif %}"
    "<|vision_start|><image><|vision_end|>{% elif part['type'] == 'video' %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% elif 'text' in part %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
GLM_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|begin_of_image|><image><|end_of_image|>"
    "{% elif part['type'] == 'video' %}<|begin_of_video|><|video|><|end_of_video|>"
    "{% elif part['type'] == 'text' %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
GEMMA_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] | trim }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}{{ '<start_of_image>' }}{% elif part['type'] == 'text' %}{{ part['text'] | trim }}"
    "{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>model\n' }}{% endif %}"
)
GEMMA3_TEXT = {
    "model_type": "gemma3_text", "num_hidden_layers": 3, "sliding_window": 12, "query_pre_attn_scalar": 16,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}  # fmt: skip
GEMMA4 = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 2, "head_dim": 16, "patch_size": 4, "position_embedding_size": 256,
}  # fmt: skip
GEMMA4_TEXT = {
    "model_type": "gemma4_text", "num_hidden_layers": 6, "sliding_window": 12, "global_head_dim": 32,
    "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": VOCAB_SIZE, "num_kv_shared_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"] * 3, "use_bidirectional_attention": "vision",
}  # fmt: skip
MISTRAL_TEMPLATE = (
    "{%- for message in messages %}{%- if message['role'] == 'user' %}"
    "{%- if message['content'] is string %}{{- '[INST]' + message['content'] + '[/INST]' }}"
    "{%- else %}{{- '[INST]' }}{%- for block in message['content'] %}"
    "{%- if block['type'] == 'text' %}{{- block['text'] }}"
    "{%- elif block['type'] in ['image', 'image_url'] %}{{- '<image>' }}"
    "{%- else %}{{- raise_exception('Only text and image blocks are supported in message content!') }}{%- endif %}"
    "{%- endfor %}{{- '[/INST]' }}{%- endif %}"
    "{%- elif message['role'] == 'assistant' %}{{- message['content'] + eos_token }}"
    "{%- else %}{{- raise_exception('Only user and assistant roles are supported!') }}{%- endif %}{%- endfor %}"
)
IDEFICS3_TEMPLATE = (
    "<|im_start|>{% for message in messages %}{{message['role'] | capitalize}}"
    "{% if message['content'][0]['type'] == 'image' %}{{':'}}{% else %}{{': '}}{% endif %}"
    "{% for line in message['content'] %}{% if line['type'] == 'text' %}{{line['text']}}"
    "{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end_of_utterance>\n{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)


@dataclass
class Checkpoint:
    """A folder, and the same in transformers. `word`: what stands in a text for a picture."""

    folder: Path
    model: Any
    processor: Any
    word: str = "<image>"

    def inputs(self, text: str, pictures: list[Any], **settings: Any) -> dict[str, Any]:
        """What transformers' model takes: the ids, and the pixels of the pictures. `settings`: of their processor."""
        images = {"images": [pictures] if "idefics3" in type(self.processor).__name__.lower() else pictures}
        images |= {"images_kwargs": settings} if settings else {}
        return dict(self.processor(text=text, return_tensors="pt", **(images if pictures else {})))

    def continued(self, text: str, pictures: list[Any], num_tokens: int) -> tuple[list[int], list[int], list[float]]:
        """(ids of the prompt, greedy tokens, their log-probabilities), each step from the start, in float32."""
        import torch

        inputs = self.inputs(text, pictures)
        ids = inputs.pop("input_ids")
        inputs.pop("attention_mask")
        name = next((name for name in ("mm_token_type_ids", "token_type_ids") if name in inputs), "")
        kinds = inputs.pop(name, None)  # 0: of texts
        prompt, tokens, logprobs = ids[0].tolist(), [], []
        with torch.inference_mode():
            for _ in range(num_tokens):
                if kinds is not None:
                    kinds = torch.nn.functional.pad(kinds, (0, ids.shape[1] - kinds.shape[1]))
                    inputs[name] = kinds
                row = self.model(input_ids=ids, **inputs).logits[0, -1].log_softmax(-1)
                tokens.append(int(row.argmax()))
                logprobs.append(float(row[tokens[-1]]))
                ids = torch.cat([ids, torch.tensor([tokens[-1:]])], 1)
        return prompt, tokens, logprobs


def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    """Smooth waves and noise, so that filters and crops all matter."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    waves = [np.sin(x / rng.uniform(2, 30) + y / rng.uniform(2, 30)) for _ in range(3)]
    noise = rng.integers(0, 80, (height, width, 3))
    return Image.fromarray(np.clip(np.stack(waves, -1) * 90 + 110 + noise - 40, 0, 255).astype(np.uint8))


def write_llava(folder: Path, tower: dict[str, Any] = CLIP, processor: Any = None, **options: Any) -> Checkpoint:
    """LLaVA 1.5's kind: 25 tokens for a picture, or 26 with `vision_feature_select_strategy` 'full'."""
    import transformers

    classes = transformers.LlavaConfig, transformers.LlavaForConditionalGeneration
    model = _random_model(folder, *classes, tower, {"image_token_index": 3, **options})
    tokenizer = _write_tokenizer(folder, LLAVA_TEMPLATE)
    if processor is None:
        edge = tower["image_size"]
        processor = transformers.models.clip.image_processing_pil_clip.CLIPImageProcessorPil(
            size={"shortest_edge": edge}, crop_size={"height": edge, "width": edge}
        )
    processor.save_pretrained(folder)
    has_class = tower["model_type"] == CLIP["model_type"]
    whole = transformers.LlavaProcessor(
        processor,
        tokenizer,
        patch_size=tower["patch_size"],
        vision_feature_select_strategy=model.config.vision_feature_select_strategy,
        num_additional_image_tokens=int(has_class),
    )
    return Checkpoint(folder, model, whole)


def write_idefics3(folder: Path, is_smol: bool = False, **options: Any) -> Checkpoint:
    """Idefics3's kind, 4 tokens for a tile of 25 pixels (6 x 6 patches, in groups of 3 x 3)."""
    import transformers

    name = "SmolVLM" if is_smol else "Idefics3"
    classes = (getattr(transformers, f"{name}{last}") for last in ("Config", "ForConditionalGeneration"))
    tower = SHUFFLED | {"model_type": f"{name.lower()}_vision"}
    model = _random_model(folder, *classes, tower, {"image_token_id": 3, "scale_factor": 3})
    rows = [f"<row_{row}_col_{column}>" for row in range(1, 4) for column in range(1, 4)]
    tokenizer = _write_tokenizer(folder, IDEFICS3_TEMPLATE, ["<global-img>", *rows] if is_smol else [])
    module = getattr(getattr(transformers.models, name.lower()), f"image_processing_pil_{name.lower()}")
    settings = {"size": {"longest_edge": 75}, "max_image_size": {"longest_edge": 25}, **options}
    processor = getattr(module, f"{name}ImageProcessorPil")(**settings)
    # The processor of SmolVLM needs one more package for videos; it treats pictures as Idefics3's does.
    whole = transformers.Idefics3Processor(processor, tokenizer, image_seq_len=4)
    (whole if is_smol else processor).save_pretrained(folder)
    return Checkpoint(folder, model, whole)


def write_internvl(
    folder: Path,
    tower: dict[str, Any] | None = None,
    text: str = "qwen2",
    settings: Any = None,
    words: tuple[str, str] | None = None,
    **options: Any,
) -> Checkpoint:
    """InternVL's kind, 4 tokens for a tile of 24 pixels (4 x 4 patches, in groups of 2 x 2).

    Args:
        tower: keys beside those of `INTERNVIT`. text: `model_type` of the text model. settings: of the image processor.
        words: around a picture, named by the tokenizer; None: <img> and </img>, unnamed.
    """
    import transformers
    from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil

    classes = transformers.InternVLConfig, transformers.InternVLForConditionalGeneration
    options = {"image_token_id": 3, "image_seq_length": 4, "tie_word_embeddings": False, **options}
    model = _random_model(folder, *classes, INTERNVIT | (tower or {}), options, {"model_type": text})
    first, last = words or ("<img>", "</img>")
    named = {"start_image_token": first, "end_image_token": last, "context_image_token": "<image>"}
    tokenizer = _write_tokenizer(folder, INTERNVL_TEMPLATE, [first, last, "<video>"], named if words else {})
    for name, word in named.items():
        setattr(tokenizer, name, word)
        setattr(tokenizer, f"{name}_id", tokenizer.convert_tokens_to_ids(word))
    tokenizer.video_token = "<video>"
    processor = GotOcr2ImageProcessorPil(**{"size": {"height": 24, "width": 24}, "max_patches": 6, **(settings or {})})
    processor.save_pretrained(folder)

    class PicturesOnly(transformers.InternVLProcessor):
        """Without the part for videos, which needs one more package."""

        def check_argument_for_proper_class(self, *args: Any) -> None:
            pass

    return Checkpoint(folder, model, PicturesOnly(processor, tokenizer, image_seq_length=4))


_PUBLISHED_NAMES = (
    (r"^multi_modal_projector\.layer_norm\.", "mlp1.0."),
    (r"^multi_modal_projector\.linear_1\.", "mlp1.1."),
    (r"^multi_modal_projector\.linear_2\.", "mlp1.3."),
    (r"^vision_tower\.embeddings\.cls_token$", "vision_model.embeddings.class_embedding"),
    (r"^vision_tower\.embeddings\.position_embeddings$", "vision_model.embeddings.position_embedding"),
    (r"^vision_tower\.embeddings\.patch_embeddings\.projection\.", "vision_model.embeddings.patch_embedding."),
    (r"^vision_tower\.encoder\.layer\.", "vision_model.encoder.layers."),
    (r"\.lambda_([12])$", r".ls\1"),
    (r"\.attention\.projection_layer\.", ".attn.proj."),
    (r"(?<=^vision_model\.encoder\.layers\.\d\.)attention\.", "attn."),
    (r"\.layernorm_before\.", ".norm1."),
    (r"\.layernorm_after\.", ".norm2."),
)


def write_internvl_chat(folder: Path, tower: dict[str, Any] | None = None, text: str = "qwen2") -> Checkpoint:
    """The same as InternVL's authors publish it, with a token for pictures that config.json does not name.

    `text`: as of `write_internvl`; InternLM 2 as well, whose tensors are published under other names.
    """
    import torch
    from safetensors.torch import load_file, save_file

    tower = {"use_mean_pooling": True} | (tower or {})
    class_of_text = "llama" if text == "internlm2" else text
    checkpoint = write_internvl(folder, tower, class_of_text, {"max_patches": 5, "min_patches": 2}, None)
    config = json.loads((folder / "config.json").read_text())
    tensors = load_file(folder / "model.safetensors")
    for name in [name for name in tensors if name.startswith("vision_tower.") and ".q_proj." in name]:
        parts = [tensors.pop(name.replace(".q_proj.", f".{part}_proj.")) for part in "qkv"]
        tensors[name.replace(".attention.q_proj.", ".attn.qkv.")] = torch.cat(parts)
    if text == "internlm2":
        tensors = _as_internlm2(tensors, config["text_config"])
    published = {}
    for name, tensor in tensors.items():
        for pattern, replacement in _PUBLISHED_NAMES:
            name = re.sub(pattern, replacement, name)
        published[name] = tensor.contiguous()
    save_file(published, folder / "model.safetensors")
    eyes = {key: value for key, value in config["vision_config"].items() if key != "model_type"}
    eyes |= {"qkv_bias": eyes.pop("attention_bias"), "qk_normalization": eyes.pop("use_qk_norm")}
    eyes |= {"image_size": 24, "patch_size": 6, "architectures": ["InternVisionModel"], "model_type": "intern_vit_6b"}
    text_config = config["text_config"] | {"model_type": text}
    if text == "internlm2":
        text_config = RENAMED["InternLM2"].config(text_config, "InternLM2ForCausalLM")
    (folder / "config.json").write_text(
        json.dumps(
            {
                "architectures": ["InternVLChatModel"], "model_type": "internvl_chat", "llm_config": text_config,
                "vision_config": eyes, "downsample_ratio": 0.5, "dynamic_image_size": True, "force_image_size": 24,
                "min_dynamic_patch": 2, "max_dynamic_patch": 5, "ps_version": "v2", "select_layer": -1,
                "use_thumbnail": True, "template": "internvl2_5", "tie_word_embeddings": False,
            }
        )
    )  # fmt: skip
    processor = checkpoint.processor
    means = {"image_mean": processor.image_processor.image_mean, "image_std": processor.image_processor.image_std}
    stated = {"crop_size": 24, "do_center_crop": True, "feature_extractor_type": "CLIPFeatureExtractor", "size": 24}
    (folder / "preprocessor_config.json").write_text(json.dumps(stated | means))
    (folder / "processor_config.json").unlink(missing_ok=True)
    word = "<IMG_CONTEXT>"
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_text((folder / name).read_text().replace("<image>", word))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["added_tokens_decoder"] = {"3": {"content": word, "special": True}}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    from transformers import PreTrainedTokenizerFast

    path = str(folder / "tokenizer.json")
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=path, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    for name in ("start_image_token", "end_image_token", "video_token"):
        setattr(tokenizer, name, getattr(processor.tokenizer, name))
    for name, token in (("start", "<img>"), ("end", "</img>"), ("context", word)):
        setattr(tokenizer, f"{name}_image_token", token)
        setattr(tokenizer, f"{name}_image_token_id", tokenizer.convert_tokens_to_ids(token))
    whole = type(processor)(processor.image_processor, tokenizer, image_seq_length=4)
    return Checkpoint(folder, checkpoint.model, whole, word)


def _as_internlm2(tensors: dict[str, Any], text: dict[str, Any]) -> dict[str, Any]:
    """The text model's tensors as InternLM 2's, of Llama's."""
    first = "language_model."
    own = {name.removeprefix(first): each for name, each in tensors.items() if name.startswith(first)}
    named = RENAMED["InternLM2"].tensors(own, text)
    others = {name: each for name, each in tensors.items() if not name.startswith(first)}
    return others | {f"{first}{name}": each for name, each in named.items()}


def write_qwen_vl(
    folder: Path, name: str = "Qwen2_5_VL", tower: dict[str, Any] | None = None, settings: Any = None, **rope: Any
) -> Checkpoint:
    """Qwen-VL's kind: a token for 8 x 8 pixels (2 x 2 patches), 4 to 40 for a picture. Half of a head of Qwen3.5's
    turns.

    Args:
        name: of `QWENS`. tower: keys beside those there. settings: of the image processor. rope: the text's parameters.
    """
    import transformers
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    classes = (getattr(transformers, f"{name}{last}") for last in ("Config", "ForConditionalGeneration"))
    part = {"mrope_section": [2, 1, 1], "partial_rotary_factor": 0.5} if name.startswith("Qwen3_5") else {}
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3], **part, **rope}
    rope |= {"mrope_interleaved": True} if name.startswith("Qwen3") else {}
    language = QWEN_TEXTS[name] | {"rope_parameters": rope}
    tower = QWENS[name] | (tower or {})
    folder.mkdir(exist_ok=True)
    tokenizer = _write_tokenizer(folder, QWEN_TEMPLATE, ["<|vision_start|>", "<|vision_end|>", "<|video_pad|>"])
    tokenizer.image_token, tokenizer.image_token_id = "<image>", 3
    ids = {"image_token_id": 3, "video_token_id": tokenizer.convert_tokens_to_ids("<|video_pad|>")}
    model = _random_model(folder, *classes, tower, ids, language)
    area = {"shortest_edge": 4 * 64, "longest_edge": 40 * 64}
    processor = Qwen2VLImageProcessorPil(**{"patch_size": tower["patch_size"], "size": area, **(settings or {})})
    processor.save_pretrained(folder)

    class PicturesOnly(transformers.Qwen2VLProcessor):
        """Without the part for videos, which needs one more package."""

        def check_argument_for_proper_class(self, *args: Any) -> None:
            pass

    return Checkpoint(folder, model, PicturesOnly(processor, tokenizer), "<|vision_start|><image><|vision_end|>")


def write_paddle(folder: Path, tower: dict[str, Any] | None = None, settings: Any = None, **text: Any) -> Checkpoint:
    """PaddleOCR-VL's kind: a token for 8 x 8 pixels (2 x 2 patches), 4 to 40 for a picture.

    Args:
        tower: keys beside those of `PADDLE`. settings: of the image processor. text: of the text model.
    """
    import transformers

    images = importlib.import_module("transformers.models.paddleocr_vl.image_processing_pil_paddleocr_vl")
    classes = (getattr(transformers, f"PaddleOCRVL{last}") for last in ("Config", "ForConditionalGeneration"))
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}
    tower = PADDLE | (tower or {})
    folder.mkdir(exist_ok=True)
    tokenizer = _write_tokenizer(folder, QWEN_TEMPLATE, ["<|vision_start|>", "<|vision_end|>"])
    tokenizer.image_token, tokenizer.image_token_id = "<image>", 3
    tie = {"tie_word_embeddings": text.pop("tie_word_embeddings", True)}
    language = {"model_type": "paddleocr_vl_text", "rope_parameters": rope, **tie, **text}
    model = _random_model(folder, *classes, tower, {"image_token_id": 3, **tie}, language)
    area = {"shortest_edge": 4 * 64, "longest_edge": 40 * 64}
    processor = images.PaddleOCRVLImageProcessorPil(
        **{"patch_size": tower["patch_size"], "size": area, **(settings or {})}
    )
    processor.save_pretrained(folder)
    module = importlib.import_module("transformers.models.paddleocr_vl.processing_paddleocr_vl")

    class AnyImageProcessor(module.PaddleOCRVLProcessor):
        """With the image processor that needs no torchvision."""

        def check_argument_for_proper_class(self, *args: Any) -> None:
            pass

    return Checkpoint(folder, model, AnyImageProcessor(processor, tokenizer), "<|vision_start|><image><|vision_end|>")


def write_glm4v(
    folder: Path, name: str = "Glm4v", tower: dict[str, Any] | None = None, settings: Any = None, **rope: Any
) -> Checkpoint:
    """GLM-4.1V's kind: a token for 8 x 8 pixels (2 x 2 patches), 4 to 40 for a picture. Half of a head turns.

    Args:
        name: of `GLMS`. tower: keys beside `GLM4V`'s. settings: of the image processor. rope: the text's parameters.
    """
    import transformers

    number = "46V" if name == "Glm46V" else "4v"
    module = importlib.import_module(
        f"transformers.models.glm{number.lower()}.image_processing_pil_glm{number.lower()}"
    )
    classes = (getattr(transformers, f"{name}{last}") for last in ("Config", "ForConditionalGeneration"))
    rope = {
        "rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1], **rope,
    }  # fmt: skip
    folder.mkdir(exist_ok=True)
    marks = [f"<|{side}_of_{kind}|>" for kind in ("image", "video") for side in ("begin", "end")]
    tokenizer = _write_tokenizer(folder, GLM_TEMPLATE, [*marks, "<|video|>"])
    ids = tokenizer.convert_tokens_to_ids([*marks, "<|video|>"])
    tokenizer.image_token, tokenizer.image_token_id = "<image>", 3
    named = (f"{kind}_{side}_token_id" for kind in ("image", "video") for side in ("start", "end"))
    options = {"image_token_id": 3, **dict(zip((*named, "video_token_id"), ids, strict=True))}
    model_type = {"Glm4vMoe": "glm4v_moe_vision", "GlmOcr": "glm_ocr_vision"}.get(name, "glm4v_vision")
    eyes = GLM4V | {"model_type": model_type} | (tower or {})
    model = _random_model(folder, *classes, eyes, options, GLMS[name] | {"rope_parameters": rope})
    volume = {"shortest_edge": 8 * 64, "longest_edge": 80 * 64}
    processor = getattr(module, f"Glm{number}ImageProcessorPil")(
        **{"patch_size": eyes["patch_size"], "size": volume, **(settings or {})}
    )
    processor.save_pretrained(folder)
    whole: Any = getattr(transformers, f"Glm{number}Processor")  # of GLM-OCR, too

    class PicturesOnly(whole):
        """Without the part for videos, which needs one more package."""

        def check_argument_for_proper_class(self, *args: Any) -> None:
            pass

        def create_mm_token_type_ids(self, input_ids: Any) -> Any:
            ids = [list(map(int, one)) for one in input_ids]  # of tensors NumPy warns
            return super().create_mm_token_type_ids(ids)

    return Checkpoint(folder, model, PicturesOnly(processor, tokenizer), "<|begin_of_image|><image><|end_of_image|>")


def write_llava_next(folder: Path, settings: Any = None, is_onevision: bool = False, **options: Any) -> Checkpoint:
    """LLaVA-NeXT's kind, or LLaVA-OneVision's: squares of 12 pixels, 9 rows each, up to 2 x 3 of them and the whole.

    Args:
        settings: of the image processor. options: of the whole model, and its `tower`.
    """
    import transformers

    name = "LlavaOnevision" if is_onevision else "LlavaNext"
    classes = (getattr(transformers, f"{name}{last}") for last in ("Config", "ForConditionalGeneration"))
    tower = (SIGLIP if is_onevision else CLIP) | {"image_size": 12, "patch_size": 4} | options.pop("tower", {})
    edge, text = tower["image_size"], {"model_type": options.pop("text", "qwen2" if is_onevision else "mistral")}
    grids = [[edge * lines, edge * columns] for lines, columns in ((1, 2), (2, 1), (2, 2), (3, 1), (1, 3), (2, 3))]
    options = {"image_token_index": 3, "tie_word_embeddings": False, "image_grid_pinpoints": grids, **options}
    model = _random_model(folder, *classes, tower, options, text)
    tokenizer = _write_tokenizer(folder, LLAVA_TEMPLATE, ["<video>"])
    module = getattr(
        getattr(transformers.models, f"llava_{name[5:].lower()}"), f"image_processing_pil_llava_{name[5:].lower()}"
    )
    square = {"height": edge, "width": edge}
    sized = {"size": square} if is_onevision else {"size": {"shortest_edge": edge}, "crop_size": square}
    processor = getattr(module, f"{name}ImageProcessorPil")(image_grid_pinpoints=grids, **sized, **(settings or {}))
    processor.save_pretrained(folder)
    strategy = model.config.vision_feature_select_strategy
    if not is_onevision:
        numbers = {"patch_size": tower["patch_size"], "num_additional_image_tokens": int(strategy == "default")}
        whole = transformers.LlavaNextProcessor(
            processor, tokenizer, vision_feature_select_strategy=strategy, **numbers
        )
        return Checkpoint(folder, model, whole)

    class PicturesOnly(transformers.LlavaOnevisionProcessor):
        """Without the part for videos, which needs one more package."""

        def check_argument_for_proper_class(self, *args: Any) -> None:
            pass

    numbers = {"num_image_tokens": (edge // tower["patch_size"]) ** 2, "vision_feature_select_strategy": strategy}
    ratio = model.config.vision_aspect_ratio
    return Checkpoint(folder, model, PicturesOnly(processor, tokenizer, vision_aspect_ratio=ratio, **numbers))


def write_pixtral(
    folder: Path, factor: int = 0, text: dict[str, Any] | None = None, settings: Any = None, **options: Any
) -> Checkpoint:
    """Pixtral's kind, or with a `factor` Mistral 3's: a token for 4 x `factor` pixels, of up to 40 on an edge, and a
    word behind each line of tokens.

    Args:
        text: keys of the text model. settings: of the image processor. options: of the whole model, and its `tower`.
    """
    import transformers

    name = "Mistral3" if factor else "Llava"
    classes = (getattr(transformers, f"{name}{last}") for last in ("Config", "ForConditionalGeneration"))
    tower = PIXTRAL | options.pop("tower", {})
    more = {"spatial_merge_size": factor} if factor else {"vision_feature_select_strategy": "full"}
    options = {"image_token_index": 3, "vision_feature_layer": -1, "tie_word_embeddings": False, **more, **options}
    model = _random_model(folder, *classes, tower, options, {"model_type": "mistral"} | (text or {}))
    tokenizer = _write_tokenizer(folder, MISTRAL_TEMPLATE, ["[IMG_BREAK]", "[IMG_END]", "[INST]", "[/INST]"])
    patch, edge = tower["patch_size"], {"longest_edge": 40}
    images, processor_class = _pixtral_classes()
    processor = images(**{"patch_size": patch * max(factor, 1), "size": edge, **(settings or {})})
    processor.save_pretrained(folder)
    numbers = {"patch_size": patch, "spatial_merge_size": max(factor, 1)}
    return Checkpoint(folder, model, processor_class(processor, tokenizer, image_token="<image>", **numbers))


def write_lighton_ocr(folder: Path, factor: int = 2, **options: Any) -> Checkpoint:
    """LightOnOCR's kind: Pixtral's tower, a token for 4 x `factor` pixels, and no words between lines of them.

    `options`: of the whole model, and its `tower`.
    """
    import transformers

    images, _ = _pixtral_classes()
    whole = importlib.import_module("transformers.models.lighton_ocr.processing_lighton_ocr").LightOnOcrProcessor
    classes = (getattr(transformers, f"LightOnOcr{last}") for last in ("Config", "ForConditionalGeneration"))
    tower = PIXTRAL | {"hidden_act": "silu"} | options.pop("tower", {})
    options = {"image_token_id": 3, "spatial_merge_size": factor, **options}
    model = _random_model(folder, *classes, tower, options, {"model_type": "qwen3"})
    tokenizer = _write_tokenizer(folder, MISTRAL_TEMPLATE, ["[INST]", "[/INST]"])
    for name, token_id in (("image", 3), ("image_break", 4), ("image_end", 5)):
        setattr(tokenizer, f"{name}_token", tokenizer.convert_ids_to_tokens(token_id))
        setattr(tokenizer, f"{name}_token_id", token_id)
    processor = images(patch_size=tower["patch_size"] * factor, size={"longest_edge": 40})
    processor.save_pretrained(folder)
    numbers = {"patch_size": tower["patch_size"], "spatial_merge_size": factor}
    return Checkpoint(folder, model, whole(processor, tokenizer, **numbers))


def _pixtral_classes() -> tuple[Any, Any]:
    """(the image processor with Pillow, the processor), which needs nothing of torchvision but one function."""
    from transformers.models.pixtral import image_processing_pil_pixtral as with_pillow

    sys.modules.setdefault("transformers.models.pixtral.image_processing_pixtral", with_pillow)
    module = importlib.import_module("transformers.models.pixtral.processing_pixtral")
    return with_pillow.PixtralImageProcessorPil, module.PixtralProcessor


def write_gemma3(folder: Path, language: Any = None, settings: Any = None, **tower: Any) -> Checkpoint:
    """Gemma 3's kind: 9 tokens for a tile of 24 pixels (6 x 6 patches, the means of 2 x 2), which see each other.

    Args:
        language: keys beside those of `GEMMA3_TEXT`. settings: of the image processor. tower: keys beside `SIGLIP`'s.
    """
    import transformers
    from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil

    words = {"image_token": "<image>", "boi_token": "<start_of_image>", "eoi_token": "<end_of_image>"}
    folder.mkdir(exist_ok=True)
    tokenizer = _write_tokenizer(folder, GEMMA_TEMPLATE, [*words.values()][1:], words)
    options: dict[str, Any] = {"mm_tokens_per_image": 9}
    for name, word in words.items():
        number = tokenizer.convert_tokens_to_ids(word)
        setattr(tokenizer, name, word)
        setattr(tokenizer, f"{name}_id", number)
        options[f"{name}_{'id' if name == 'image_token' else 'index'}"] = number
    classes = transformers.Gemma3Config, transformers.Gemma3ForConditionalGeneration
    reads = SIGLIP | {"image_size": 24, "patch_size": 4} | tower
    model = _random_model(folder, *classes, reads, options, GEMMA3_TEXT | (language or {}))
    edge = {"height": reads["image_size"], "width": reads["image_size"]}
    processor = Gemma3ImageProcessorPil(size=edge, **(settings or {}))
    processor.save_pretrained(folder)
    whole = transformers.Gemma3Processor(processor, tokenizer, image_seq_length=9)
    return Checkpoint(folder, model, whole, "<start_of_image>")


def write_gemma4(folder: Path, language: Any = None, settings: Any = None, **tower: Any) -> Checkpoint:
    """Gemma 4's kind: up to 12 tokens for a picture, one for 12 x 12 pixels (the means of 3 x 3 patches).

    Args:
        language: keys beside those of `GEMMA4_TEXT`. settings: of the image processor. tower: keys beside `GEMMA4`'s.
    """
    import transformers
    from transformers.models.gemma4 import image_processing_pil_gemma4 as with_pillow

    # Released models have 70 rows for a picture, or more, and steps of tests have fewer tokens.
    few = 12
    if few not in SOFT_TOKENS:
        settings_of_pictures.SOFT_TOKENS = with_pillow._SUPPORTED_SOFT_TOKENS = (few, *SOFT_TOKENS)
    words = {
        "image_token": "<image>", "boi_token": "<|image>", "eoi_token": "<image|>", "audio_token": "<|audio|>",
        "boa_token": "<|audio>", "eoa_token": "<audio|>",
    }  # fmt: skip
    folder.mkdir(exist_ok=True)
    more = [*list(words.values())[1:], "<|video|>", "<start_of_image>"]
    template = GEMMA_TEMPLATE.replace("<start_of_image>", "\n\n<image>\n\n")
    tokenizer = _write_tokenizer(folder, template, more, words)
    for name, word in words.items():
        setattr(tokenizer, name, word)
        setattr(tokenizer, f"{name}_id", tokenizer.convert_tokens_to_ids(word))
    options = {
        "image_token_id": 3, "boi_token_id": tokenizer.boi_token_id, "eoi_token_id": tokenizer.eoi_token_id,
        "video_token_id": tokenizer.convert_tokens_to_ids("<|video|>"),
        "audio_token_id": tokenizer.audio_token_id, "audio_config": None,
    }  # fmt: skip
    classes = transformers.Gemma4Config, transformers.Gemma4ForConditionalGeneration
    model = _random_model(folder, *classes, GEMMA4 | tower, options, GEMMA4_TEXT | (language or {}))
    processor = with_pillow.Gemma4ImageProcessorPil(**{"patch_size": 4, "max_soft_tokens": few, **(settings or {})})
    processor.save_pretrained(folder)

    class PicturesOnly(transformers.Gemma4Processor):
        """Without the parts for sounds and videos, which need more packages."""

        def check_argument_for_proper_class(self, *args: Any) -> None:
            pass

    return Checkpoint(folder, model, PicturesOnly(None, processor, tokenizer, None))


def _random_model(
    folder: Path, config_class: Any, model_class: Any, tower: Any, options: Any, language: Any = None
) -> Any:
    import torch

    text = {key: value for key, value in (LANGUAGE | (language or {})).items() if value is not ...}
    config = config_class(text_config=text, vision_config=dict(tower), **options)
    model = model_class(config).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            is_factor = any(word in name for word in ("norm", "layrnorm", "ln_q", "ln_pre"))
            parameter.normal_(1.0 if is_factor and name.endswith("weight") else 0.0, 0.2, generator=generator)
    model.save_pretrained(folder)
    return model


def _write_tokenizer(
    folder: Path, template: str, more: list[str] | None = None, named: dict[str, str] | None = None
) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = SPECIAL + (more or [])
    trainer = trainers.BpeTrainer(
        vocab_size=340,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*TEXT, "\n\n" * 9], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"eos_token": "<|im_end|>", "chat_template": template, "model_max_length": 1024}
    config |= {"extra_special_tokens": named} if named else {}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    path = str(folder / "tokenizer.json")
    return PreTrainedTokenizerFast(tokenizer_file=path, eos_token="<|im_end|>", pad_token="<|endoftext|>")


def sizes(seed: int, num: int) -> list[tuple[int, int]]:
    """Random shapes of pictures, thin ones and squares too."""
    rng = random.Random(seed)
    return [(rng.randint(5, 150), rng.randint(5, 150)) for _ in range(num)]
