"""Tiny random checkpoints of Phi-4-multimodal, which see and hear, with transformers' model.

Its image processor needs torchvision for three functions; everything else of it is called here.
"""

import importlib
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch.nn import functional

from kit.audio.checkpoint import RATE
from kit.audio.hearing import LANGUAGE, write_tokenizer
from kit.vision.checkpoint import SIGLIP

EDGE, PATCH, MOST_SQUARES = 24, 4, 6
SIDE = EDGE // PATCH // 2
"""Rows on a side of a square."""
EYE = SIGLIP | {"model_type": "phi4_multimodal_vision", "image_size": EDGE, "patch_size": PATCH, "crop_size": EDGE}
EAR = {
    "hidden_size": 32, "intermediate_size": 48, "num_blocks": 2, "num_attention_heads": 2, "ext_pw_out_channel": 32,
    "depthwise_separable_out_channel": 32, "nemo_conv_channels": 16, "bias_max_distance": 6,
}  # fmt: skip
SPECIAL = ["<|endoftext|>", "<|user|>", "<|end|>", "<|image|>", "<|audio|>", "<|assistant|>"]
IMAGE_ID, AUDIO_ID = 3, 4
TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|image|>{% elif part['type'] == 'audio' %}<|audio|>"
    "{% elif part['type'] == 'text' %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
_OWN_STEPS = (
    "dynamic_preprocess", "find_closest_aspect_ratio", "pad_to_max_num_crops", "pad_mask_to_max_num_crops",
)  # fmt: skip
ROPE = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}


def spelled(text: str) -> str:
    """With the model's words in place of <image> and <audio>."""
    return text.replace("<image>", SPECIAL[IMAGE_ID]).replace("<audio>", SPECIAL[AUDIO_ID])


@dataclass
class Phi4:
    """A folder, and the same in transformers."""

    folder: Path
    model: Any
    tokenizer: Any
    extractor: Any

    def seen(self, pictures: list[Any]) -> dict[str, Any]:
        """What transformers' model takes for these pictures, and `num_img_tokens`."""
        made = _processed(pictures)
        numbers = made.pop("num_img_tokens")
        # It counts the whole picture's rows as those of 448 pixels.
        return {**made, "num_img_tokens": [number - 256 - 16 + SIDE * (SIDE + 1) for number in numbers]}

    def heard(self, sounds: list[np.ndarray]) -> dict[str, Any]:
        """What transformers' model takes for one sound or several of one length."""
        return dict(self.extractor(sounds, sampling_rate=RATE, return_tensors="pt"))

    def rows(self, text: str, pictures: list[Any], sounds: list[np.ndarray]) -> tuple[torch.Tensor, torch.Tensor]:
        """(ids `[1, T]`, embeddings `[1, T, H]`). Each sound is read alone, as if it were a prompt's only one."""
        given, model = self.seen(pictures) if pictures else {}, self.model.model
        numbers = {IMAGE_ID: given.pop("num_img_tokens", []), AUDIO_ID: []}
        heard = [self.heard([sound]) for sound in sounds]
        numbers[AUDIO_ID] = [int(each["audio_embed_sizes"][0]) for each in heard]
        text = spelled(text)
        for token_id, counts in numbers.items():
            for count in counts:
                text = text.replace(SPECIAL[token_id], "\0" * count, 1)
            text = text.replace("\0", SPECIAL[token_id])
        ids = torch.tensor([self.tokenizer(text, add_special_tokens=False)["input_ids"]])
        rows = model.embed_tokens(ids)
        if pictures:
            rows = model.embed_tokens_extend.image_embed(ids, rows, **given)
        mode, parts = "vision" if pictures else "speech", []
        for each in heard:
            count = int(each["audio_embed_sizes"][0])
            own = torch.full((1, count), AUDIO_ID)
            parts.append(
                model.embed_tokens_extend.audio_embed(own, model.embed_tokens(own), audio_projection_mode=mode, **each)[
                    0
                ]
            )
        if parts:
            rows[ids == AUDIO_ID] = torch.cat(parts)
        return ids, rows

    def continued(
        self, num_tokens: int, text: str, pictures: Any = (), sounds: Any = ()
    ) -> tuple[list[int], list[int], list[float]]:
        """(ids of the prompt, greedy tokens, their log-probabilities), each step from the start, in float32."""
        tokens, logprobs = [], []
        with torch.inference_mode():
            ids, rows = self.rows(text, list(pictures), list(sounds))
            for _ in range(num_tokens):
                row = self.model(inputs_embeds=rows).logits[0, -1].log_softmax(-1)
                tokens.append(int(row.argmax()))
                logprobs.append(float(row[tokens[-1]]))
                rows = torch.cat([rows, self.model.model.embed_tokens(torch.tensor([tokens[-1:]]))], 1)
        return ids[0].tolist(), tokens, logprobs


def _processed(pictures: list[Image.Image]) -> dict[str, Any]:
    from transformers.utils import is_torchvision_available

    is_torchvision_available()  # is remembered: what stands in for it cannot be found
    names = ["torchvision", *(f"torchvision.transforms{last}" for last in ("", ".v2", ".v2.functional"))]
    stand_ins = {name: ModuleType(name) for name in names if name not in sys.modules}
    sys.modules.update(stand_ins)  # for the line that imports it
    try:
        module = importlib.import_module("transformers.models.phi4_multimodal.image_processing_phi4_multimodal")
    finally:
        for name in stand_ins:
            del sys.modules[name]
    module.tvF = SimpleNamespace(resize=_resized, pad=_padded)
    found = type.__getattribute__(module.Phi4MultimodalImageProcessor, "__dict__")
    own = SimpleNamespace(rescale_and_normalize=_normalized, resize=_small)
    for name in (
        "dynamic_preprocess",
        "find_closest_aspect_ratio",
        "pad_to_max_num_crops",
        "pad_mask_to_max_num_crops",
    ):
        setattr(own, name, found[name].__get__(own))
    images = [torch.from_numpy(np.asarray(one).copy()).permute(2, 0, 1) for one in pictures]
    made = found["_preprocess"](
        own, images, True, SimpleNamespace(height=EDGE, width=EDGE), 3, True, 1 / 255, True, [0.5] * 3, [0.5] * 3,
        PATCH, MOST_SQUARES, None,
    )  # fmt: skip
    return dict(made)


def _resized(image: torch.Tensor, size: list[int]) -> torch.Tensor:
    picture = Image.fromarray(image.permute(1, 2, 0).numpy()).resize((size[1], size[0]), 2)
    return torch.from_numpy(np.asarray(picture).copy()).permute(2, 0, 1)


def _padded(image: torch.Tensor, padding: list[int], fill: list[int]) -> torch.Tensor:
    left, top, right, bottom = padding
    return functional.pad(image, (left, right, top, bottom), value=fill[0])


def _normalized(image: torch.Tensor, _rescales: bool, factor: float, _normalizes: bool, mean: Any, std: Any) -> Any:
    means, stds = (torch.tensor(values)[:, None, None] for values in (mean, std))
    return ((image.double() * factor).float() - means) / stds


def _small(image: torch.Tensor, size: Any, resample: int, antialias: bool) -> torch.Tensor:
    assert resample == 3 and not antialias
    return functional.interpolate(image[None], (size.height, size.width), mode="bicubic")[0]


def write_phi4(folder: Path, eye: Any = None, ear: Any = None, **text: Any) -> Phi4:
    """A token for 8 x 8 pixels of squares of 24, at most 6 of them; a sound has a token for 80 ms."""
    import transformers

    folder.mkdir(exist_ok=True)
    config = transformers.Phi4MultimodalConfig(
        **LANGUAGE | {"rope_parameters": ROPE, "original_max_position_embeddings": 1024, **text},
        vision_config=EYE | {"image_token_id": IMAGE_ID} | (eye or {}),
        audio_config=EAR | {"audio_token_id": AUDIO_ID} | (ear or {}),
    )
    model = transformers.Phi4MultimodalForCausalLM(config).eval()
    # With the default one, patches of pictures without borders see only those before them (5.24).
    model.set_attn_implementation("eager")
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            is_factor = "norm" in name and name.endswith("weight")
            parameter.normal_(1.0 if is_factor else 0.0, 0.2, generator=generator)
        for name, buffer in model.named_buffers():
            if "encoder_embedding" in name:  # means and factors of the features
                buffer.uniform_(0.1, 0.3, generator=generator)
    model.save_pretrained(folder)
    tokenizer = write_tokenizer(folder, SPECIAL, TEMPLATE)
    extractor = transformers.Phi4MultimodalFeatureExtractor()
    extractor.save_pretrained(folder)
    keys = json.loads((folder / "preprocessor_config.json").read_text())
    keys |= {
        "image_processor_type": "Phi4MultimodalImageProcessorFast", "size": {"height": EDGE, "width": EDGE},
        "patch_size": PATCH, "dynamic_hd": MOST_SQUARES, "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
    }  # fmt: skip
    (folder / "preprocessor_config.json").write_text(json.dumps(keys))
    return Phi4(folder, model, tokenizer, extractor)


_OLDER = (
    (r"\.image_embed\.img_projection_up\.", ".image_embed.img_projection.0."),
    (r"\.image_embed\.img_projection_down\.", ".image_embed.img_projection.2."),
    (r"\.global_img_feature_extensor$", ".glb_GN"),
    (r"\.sub_img_feature_extensor$", ".sub_GN"),
    (r"\.up_proj_for_speech\.", ".audio_projection.speech.0."),
    (r"\.down_proj_for_speech\.", ".audio_projection.speech.2."),
    (r"\.up_proj_for_vision_speech\.", ".audio_projection.vision.0."),
    (r"\.down_proj_for_vision_speech\.", ".audio_projection.vision.2."),
    (r"(\.feed_forward_(?:in|out))\.gate_up_proj\.", r"\1.net.0.linear."),
    (r"(\.feed_forward_(?:in|out))\.down_proj\.", r"\1.net.2."),
    (r"(\.encoders\.\d+\.self_attn)\.([qkv])_proj\.", r"\1.linear_\2."),
    (r"(\.encoders\.\d+\.self_attn)\.o_proj\.", r"\1.linear_out."),
)


def write_published(folder: Path, made: Phi4, template: str | None = None) -> Path:
    """The same as its authors publish it: with adapters among its tensors, and a config in other words.

    Theirs has a tower of one size, which it does not state.
    """
    folder.mkdir()
    for file in made.folder.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    data = json.loads((made.folder / "config.json").read_text())
    ear, rope = data.pop("audio_config"), data.pop("rope_parameters")
    data |= {
        "architectures": ["Phi4MMForCausalLM"], "model_type": "phi4mm", "rope_theta": rope["rope_theta"],
        "partial_rotary_factor": rope["partial_rotary_factor"], "rope_scaling": None, "img_processor": None,
        "auto_map": {"AutoConfig": "configuration_phi4mm.Phi4MMConfig"}, "attention_bias": False, "mlp_bias": False,
        "full_attn_mod": 1, "interpolate_factor": 1, "lm_head_bias": False,
        "vision_lora": {"dp": 0.0, "layer": "layers.*", "lora_alpha": 512, "r": 256},
        "speech_lora": {"dp": 0.01, "layer": "layers.*", "lora_alpha": 640, "r": 320},
        "audio_config": {"audio_token_id": AUDIO_ID},
        "embd_layer": {
            "audio_embd_layer": {
                "compression_rate": 8, "downsample_rate": 1, "embedding_cls": "audio", "projection_cls": "mlp",
                "enable_gradient_checkpointing": True, "use_conv_downsample": False, "use_qformer": False,
            },
            "embedding_cls": "image_audio",
            "image_embd_layer": {
                "crop_size": EDGE, "embedding_cls": "tune_image", "hd_transform_order": "sub_glb",
                "image_token_compression_cls": "avg_pool_2d", "projection_cls": "mlp", "use_hd_transform": True,
                "with_learnable_separator": True, "enable_gradient_checkpointing": True,
            },
        },
        "audio_processor": {
            "name": "cascades",
            "config": {
                "activation": "swish", "activation_checkpointing": {"interval": 1, "offload": False},
                "attention_dim": ear["hidden_size"], "attention_heads": ear["num_attention_heads"],
                "batch_norm": False, "bias_in_glu": True, "causal": True, "chunk_size": -1, "cnn_layer_norm": True,
                "conv_activation": "swish", "conv_glu_type": "swish", "depthwise_multiplier": 1,
                "depthwise_seperable_out_channel": ear["depthwise_separable_out_channel"], "dropout_rate": 0.0,
                "encoder_embedding_config": {"input_size": 80}, "ext_pw_kernel_size": 1,
                "ext_pw_out_channel": ear["ext_pw_out_channel"], "input_layer": "nemo_conv", "input_size": 80,
                "kernel_size": 3, "left_chunk": 18, "linear_units": ear["intermediate_size"],
                "nemo_conv_settings": {"conv_channels": ear["nemo_conv_channels"]}, "num_blocks": ear["num_blocks"],
                "relative_attention_bias_args": {"t5_bias_max_distance": ear["bias_max_distance"], "type": "t5"},
                "time_reduction": 8,
            },
        },
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(data))
    keys = {
        "image_processor_type": "Phi4MMImageProcessor", "feature_extractor_type": "Phi4MMAudioFeatureExtractor",
        "audio_compression_rate": 8, "audio_downsample_rate": 1, "audio_feat_stride": 1,
        "dynamic_hd": MOST_SQUARES, "size": {"height": EDGE, "width": EDGE}, "patch_size": PATCH,
    }  # fmt: skip
    (folder / "preprocessor_config.json").write_text(json.dumps(keys))
    if template is not None:
        words = json.loads((folder / "tokenizer_config.json").read_text())
        (folder / "tokenizer_config.json").write_text(json.dumps(words | {"chat_template": template}))
        (folder / "chat_template.jinja").unlink(missing_ok=True)
    tensors = {}
    for name, tensor in load_file(made.folder / "model.safetensors").items():
        for newer, older in _OLDER:
            name = re.sub(newer, older, name)
        if match := re.fullmatch(r"(model\.layers\.\d+\.(?:self_attn|mlp)\.\w+)\.weight", name):
            for adapter in ("vision", "speech"):
                tensors[f"{match[1]}.lora_A.{adapter}.weight"] = torch.ones(4, tensor.shape[1])
                tensors[f"{match[1]}.lora_B.{adapter}.weight"] = torch.ones(tensor.shape[0], 4)
            name = f"{match[1]}.base_layer.weight"
        tensors[name] = tensor
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder
