"""Tiny random checkpoints whose decoder hears, as people download them, with transformers' model and processor."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from kit.audio.checkpoint import NUM_ROWS, RATE
from kit.folder.checkpoint import TEXT

LANGUAGE = {
    "vocab_size": 384, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 1024, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
QWEN2_AUDIO = {
    "model_type": "qwen2_audio_encoder", "d_model": 64, "encoder_layers": 2, "encoder_attention_heads": 2,
    "encoder_ffn_dim": 96, "num_mel_bins": 80, "max_source_positions": NUM_ROWS,
}  # fmt: skip
VOXTRAL = {
    "model_type": "voxtral_encoder", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 160, "num_mel_bins": 80, "max_source_positions": NUM_ROWS,
}  # fmt: skip
AUDIO_ID = 3
SPECIAL = {
    "qwen2": ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>"],
    "voxtral": ["<unk>", "<s>", "</s>", "[AUDIO]", "[BEGIN_AUDIO]", "[INST]", "[/INST]", "[TRANSCRIBE]"],
}
QWEN2_AUDIO_TEMPLATE = (
    "{% set heard = namespace(sounds=0) %}{% for message in messages %}"
    "{% if loop.first and message['role'] != 'system' %}<|im_start|>system\nYou are helpful.<|im_end|>\n{% endif %}"
    "<|im_start|>{{ message['role'] }}\n{% if message['content'] is string %}{{ message['content'] }}<|im_end|>\n"
    "{% else %}{% for part in message['content'] %}{% if 'audio' in part or 'audio_url' in part %}"
    "{% set heard.sounds = heard.sounds + 1 %}Audio {{ heard.sounds }}: <|audio_bos|><|AUDIO|><|audio_eos|>\n"
    "{% elif 'text' in part %}{{ part['text'] }}{% endif %}{% endfor %}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
VOXTRAL_TEMPLATE = (
    "<s>{% for message in messages %}{% if message['role'] == 'user' %}[INST]"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'audio' %}[BEGIN_AUDIO][AUDIO]{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}"
    "[/INST]{% else %}{{ message['content'] }}</s>{% endif %}{% endfor %}"
)


@dataclass
class Hearer:
    """A folder, and the same in transformers. `word`: what stands in a text for a sound."""

    folder: Path
    model: Any
    extractor: Any
    tokenizer: Any
    word: str

    @property
    def is_voxtral(self) -> bool:
        return self.word == "[AUDIO]"

    def features(self, sounds: list[np.ndarray]) -> dict[str, Any]:
        """What transformers' model takes for these sounds."""
        import torch

        if not self.is_voxtral:
            given = self.extractor(
                sounds, sampling_rate=RATE, return_tensors="pt", padding="max_length", return_attention_mask=True
            )
            return {"input_features": given["input_features"], "feature_attention_mask": given["attention_mask"]}
        windows = []
        for sound in sounds:
            given = self.extractor(
                sound, sampling_rate=RATE, return_tensors="pt", padding=True, truncation=False, pad_to_multiple_of=RATE
            )
            parts = given["input_features"].reshape(self.extractor.feature_size, -1, 2 * NUM_ROWS)
            windows.append(parts.transpose(0, 1))
        return {"input_features": torch.cat(windows)}

    def inputs(self, text: str, sounds: list[np.ndarray]) -> dict[str, Any]:
        """The ids `[1, T]`, and the features of the sounds."""
        import torch

        given = self.features(sounds) if sounds else {}
        if self.is_voxtral:
            for sound in sounds:  # transformers leaves this to another library, which gives a window this many
                num_rows = -(-len(sound) // RATE) * (NUM_ROWS * VOXTRAL["hidden_size"] // VOXTRAL["intermediate_size"])
                text = text.replace(self.word, "\0" * num_rows, 1)
            ids = self.tokenizer(text.replace("\0", self.word), add_special_tokens=False)["input_ids"]
            return {"input_ids": torch.tensor([ids]), **given}
        from transformers import Qwen2AudioProcessor

        processor = Qwen2AudioProcessor(self.extractor, self.tokenizer)
        made = processor(text=text, audio=sounds or None, sampling_rate=RATE, return_tensors="pt")
        return {"input_ids": made["input_ids"], **given}

    def continued(
        self, text: str, sounds: list[np.ndarray], num_tokens: int
    ) -> tuple[list[int], list[int], list[float]]:
        """(ids of the prompt, greedy tokens, their log-probabilities), each step from the start, in float32."""
        import torch

        inputs = self.inputs(text, sounds)
        ids = inputs.pop("input_ids")
        prompt, tokens, logprobs = ids[0].tolist(), [], []
        with torch.inference_mode():
            for _ in range(num_tokens):
                asked = {"input_ids": ids, "attention_mask": torch.ones_like(ids), **inputs}
                row = self.model(**asked).logits[0, -1].log_softmax(-1)
                tokens.append(int(row.argmax()))
                logprobs.append(float(row[tokens[-1]]))
                ids = torch.cat([ids, torch.tensor([tokens[-1:]])], 1)
        return prompt, tokens, logprobs


def write_qwen2_audio(folder: Path, tower: dict[str, Any] | None = None, **options: Any) -> Hearer:
    """Qwen2-Audio's kind: it hears a second, in at most 25 rows."""
    import transformers

    classes = transformers.Qwen2AudioConfig, transformers.Qwen2AudioForConditionalGeneration
    model = _random_model(
        folder, *classes, QWEN2_AUDIO | (tower or {}), "qwen2", {"audio_token_index": AUDIO_ID} | options
    )
    tokenizer = write_tokenizer(folder, SPECIAL["qwen2"], QWEN2_AUDIO_TEMPLATE)
    return Hearer(folder, model, write_extractor(folder), tokenizer, "<|AUDIO|>")


def write_voxtral(folder: Path, tower: dict[str, Any] | None = None, **options: Any) -> Hearer:
    """Voxtral's kind: 10 rows for each second."""
    import transformers

    classes = transformers.VoxtralConfig, transformers.VoxtralForConditionalGeneration
    model = _random_model(folder, *classes, VOXTRAL | (tower or {}), "llama", {"audio_token_id": AUDIO_ID} | options)
    tokenizer = write_tokenizer(folder, SPECIAL["voxtral"], VOXTRAL_TEMPLATE)
    return Hearer(folder, model, write_extractor(folder), tokenizer, "[AUDIO]")


def _random_model(
    folder: Path, config_class: Any, model_class: Any, tower: dict[str, Any], text: str, options: dict[str, Any]
) -> Any:
    import torch

    config = config_class(
        audio_config=tower,
        text_config=LANGUAGE | {"model_type": text} | ({"head_dim": 16} if text == "llama" else {}),
        **options,
    )
    model = model_class(config).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            is_factor = "norm" in name and name.endswith("weight")
            parameter.normal_(1.0 if is_factor else 0.0, 0.2, generator=generator)
    model.save_pretrained(folder)
    return model


def write_extractor(folder: Path, seconds: int = 1) -> Any:
    from transformers import WhisperFeatureExtractor

    extractor = WhisperFeatureExtractor(80, chunk_length=seconds)
    extractor.save_pretrained(folder)
    return extractor


def write_tokenizer(folder: Path, special: list[str], template: str) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=340, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"eos_token": special[2], "bos_token": special[1], "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), eos_token=special[2], pad_token=special[0]
    )
