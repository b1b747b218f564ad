"""Tiny random checkpoints of Qwen2.5-Omni, which see and hear, with transformers' model."""

import json
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from kit.audio.checkpoint import RATE
from kit.audio.hearing import LANGUAGE, write_extractor, write_tokenizer
from kit.vision.checkpoint import QWEN2_5_VL
from kit.vision.video import Video, read

WINDOW_ROWS = 8
"""Rows of the encoder in a window, of 16 frames. Two are a row of the decoder."""
EAR = {
    "d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 96, "num_mel_bins": 80,
    "max_source_positions": 50, "n_window": WINDOW_ROWS, "output_dim": 64,
}  # fmt: skip
WORDS = {kind: f"<|{kind.upper()}|>" for kind in ("image", "video", "audio")}
SPECIAL = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", *WORDS.values(), "<|vision_bos|>", "<|vision_eos|>",
    "<|audio_bos|>", "<|audio_eos|>",
]  # fmt: skip
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|vision_bos|><|IMAGE|><|vision_eos|>"
    "{% elif part['type'] == 'video' %}<|vision_bos|><|VIDEO|><|vision_eos|>"
    "{% elif part['type'] == 'audio' %}<|audio_bos|><|AUDIO|><|audio_eos|>"
    "{% elif part['type'] == 'text' %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SIZE = {"shortest_edge": 4 * 64, "longest_edge": 20 * 64}
"""Of pictures and of frames, in pixels. A row of the decoder shows 8 x 8 of them."""


def spelled(text: str) -> str:
    """With the model's words in place of <image>, <video> and <audio>."""
    for kind, word in WORDS.items():
        around = "audio" if kind == "audio" else "vision"
        text = text.replace(f"<{kind}>", f"<|{around}_bos|>{word}<|{around}_eos|>")
    return text


@dataclass
class Omni:
    """A folder, and the same in transformers."""

    folder: Path
    model: Any
    processor: SimpleNamespace
    extractor: Any

    def heard(self, sounds: list[np.ndarray]) -> dict[str, Any]:
        """What transformers' model takes for these sounds."""
        given = self.extractor(
            sounds, sampling_rate=RATE, return_tensors="pt", padding="max_length", return_attention_mask=True
        )
        return {"input_features": given["input_features"], "feature_attention_mask": given["attention_mask"]}

    def inputs(self, text: str, pictures: list[Any], videos: list[Video], sounds: list[np.ndarray]) -> dict[str, Any]:
        """What transformers' model takes; `text`: with <image>, <video> and <audio>."""
        given: dict[str, Any] = {}
        numbers: dict[str, list[int]] = {"image": [], "video": [], "audio": []}
        if pictures:
            made = self.processor.image_processor(images=pictures, return_tensors="pt")
            given |= {"pixel_values": made["pixel_values"], "image_grid_thw": made["image_grid_thw"]}
            numbers["image"] = [int(grid.prod()) // 4 for grid in made["image_grid_thw"]]
        if videos:
            found = [read(self, video, SIZE)[1:] for video in videos]  # type: ignore[arg-type]
            given["pixel_values_videos"] = torch.cat([patches for patches, _ in found])
            given["video_grid_thw"] = torch.tensor([each.grid for _, each in found])
            asked = [(video.sampling or {}).get("fps", 2.0) for video in videos]
            given["video_second_per_grid"] = torch.tensor([2 / fps for fps in asked])
            numbers["video"] = [int(grid.prod()) // 4 for grid in given["video_grid_thw"]]
        if sounds:
            heard = self.heard(sounds)
            given |= heard
            frames = heard["feature_attention_mask"].sum(-1).tolist()
            numbers["audio"] = [((number - 1) // 2 + 1) // 2 for number in frames]
        text = spelled(text)
        for kind, word in WORDS.items():
            for number in numbers[kind]:
                text = text.replace(word, "\0" * number, 1)
            text = text.replace("\0", word)
        ids = self.processor.tokenizer(text, add_special_tokens=False)["input_ids"]
        return {"input_ids": torch.tensor([ids]), **given}

    def continued(
        self, num_tokens: int, text: str, pictures: Any = (), videos: Any = (), sounds: Any = ()
    ) -> tuple[list[int], list[int], list[float]]:
        """(ids of the prompt, greedy tokens, their log-probabilities), each step from the start, in float32."""
        given = self.inputs(text, list(pictures), list(videos), list(sounds))
        ids = given.pop("input_ids")
        # of the prompt alone: what is drawn may be a token that begins a sound
        lengths = given["feature_attention_mask"].sum(-1) if sounds else None
        grids = given.get("image_grid_thw"), given.get("video_grid_thw")
        steps = given.get("video_second_per_grid")
        places = self.model.model.get_rope_index(ids, *grids, torch.ones_like(ids), False, lengths, steps)[0]
        prompt, tokens, logprobs = ids[0].tolist(), [], []
        with torch.inference_mode():
            for _ in range(num_tokens):
                row = self.model(input_ids=ids, position_ids=places, **given).logits[0, -1].log_softmax(-1)
                tokens.append(int(row.argmax()))
                logprobs.append(float(row[tokens[-1]]))
                ids = torch.cat([ids, torch.tensor([tokens[-1:]])], 1)
                places = torch.cat([places, places[:, :, -1:].max() + torch.ones(3, 1, 1, dtype=torch.long)], 2)
        return prompt, tokens, logprobs


def write_omni(folder: Path, ear: dict[str, Any] | None = None, seconds: int = 2) -> Omni:
    """The part that reads and answers, alone; it hears `seconds`."""
    import transformers
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}
    ids = {f"{kind}_token_index": SPECIAL.index(word) for kind, word in WORDS.items()}
    ids |= {"vision_start_token_id": SPECIAL.index("<|vision_bos|>")}
    ids |= {"audio_start_token_id": SPECIAL.index("<|audio_bos|>"), "position_id_per_seconds": 5}  # tiles are small
    config = transformers.Qwen2_5OmniThinkerConfig(
        audio_config=EAR | (ear or {}),
        vision_config=QWEN2_5_VL,
        text_config=LANGUAGE | {"model_type": "qwen2_5_omni_text", "rope_parameters": rope},
        **ids,
    )
    # transformers reads it from the text config, where it is lost on the way (5.24)
    config.vision_start_token_id = ids["vision_start_token_id"]
    model = transformers.Qwen2_5OmniThinkerForConditionalGeneration(config).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            is_factor = ("norm" in name or "ln_" in name) and name.endswith("weight")
            parameter.normal_(1.0 if is_factor else 0.0, 0.2, generator=generator)
    model.save_pretrained(folder)
    tokenizer = write_tokenizer(folder, SPECIAL, TEMPLATE)
    extractor = write_extractor(folder, seconds)
    processor = Qwen2VLImageProcessorPil(patch_size=QWEN2_5_VL["patch_size"], size=SIZE)
    keys = json.loads((folder / "preprocessor_config.json").read_text())
    processor.save_pretrained(folder)
    both = json.loads((folder / "preprocessor_config.json").read_text()) | keys
    (folder / "preprocessor_config.json").write_text(json.dumps(both))
    return Omni(folder, model, SimpleNamespace(image_processor=processor, tokenizer=tokenizer), extractor)


def write_published(folder: Path, made: Omni, name: str = "Qwen2_5OmniModel") -> None:
    """The same as its authors publish it: beside what speaks, under older names."""
    folder.mkdir(exist_ok=True)
    for file in made.folder.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    data = json.loads((made.folder / "config.json").read_text())
    thinker = {key: value for key, value in data.items() if key != "architectures"}
    whole = {
        "architectures": [name], "model_type": "qwen2_5_omni", "enable_audio_output": True, "dtype": "float32",
        "thinker_config": thinker, "talker_config": {"hidden_size": 8}, "token2wav_config": {"dit_config": {}},
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(whole))
    tensors = {}
    for key, tensor in load_file(made.folder / "model.safetensors").items():
        own = key.replace("model.language_model.", "model.") if "language_model" in key else key.removeprefix("model.")
        tensors[f"thinker.{own}"] = tensor
    tensors["talker.codec_head.weight"] = torch.zeros(3, 8)
    tensors["token2wav.code2wav_dit_model.proj_out.weight"] = torch.zeros(3, 8)
    save_file(tensors, folder / "model.safetensors")
