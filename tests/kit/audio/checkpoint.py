"""Tiny random Whisper checkpoints, as people download them, beside transformers' model and feature extractor."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from kit.folder.checkpoint import TEXT

NUM_ROWS = 50
"""Of the encoder: it hears one second."""
WHISPER = {
    "vocab_size": 320, "num_mel_bins": 80, "d_model": 64, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 2, "decoder_attention_heads": 4, "encoder_ffn_dim": 96, "decoder_ffn_dim": 80,
    "max_source_positions": NUM_ROWS, "max_target_positions": 64, "pad_token_id": 0, "bos_token_id": 0,
    "eos_token_id": 0, "decoder_start_token_id": 1, "begin_suppress_tokens": None,
}  # fmt: skip
SPECIAL = [
    "<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|de|>", "<|translate|>", "<|transcribe|>", "<|startofprev|>",
    "<|notimestamps|>",
]  # fmt: skip
RATE = 16_000


@dataclass
class Heard:
    """A folder, and the same in transformers."""

    folder: Path
    model: Any

    def features(self, sound: np.ndarray) -> Any:
        """As transformers' extractor makes them, `[1, mels, frames]`."""
        from transformers import WhisperFeatureExtractor

        extractor = WhisperFeatureExtractor(self.model.config.num_mel_bins, chunk_length=1)
        return extractor(sound, sampling_rate=RATE, return_tensors="pt").input_features

    def continued(
        self, sound: np.ndarray, prompt: list[int], num_tokens: int, suppressed: tuple[int, ...] = ()
    ) -> tuple[list[int], list[float]]:
        """(greedy tokens, their log-probabilities), each step from the start, in float32."""
        import torch

        ids, tokens, logprobs = list(prompt), [], []
        with torch.inference_mode():
            encoded = self.model.model.encoder(self.features(sound))
            for _ in range(num_tokens):
                given = torch.tensor([ids])
                row = self.model(encoder_outputs=encoded, decoder_input_ids=given).logits[0, -1].log_softmax(-1)
                left = row.clone()
                left[list(suppressed)] = -torch.inf
                tokens.append(int(left.argmax()))
                logprobs.append(float(row[tokens[-1]]))
                ids.append(tokens[-1])
        return tokens, logprobs

    def timed(self, sound: np.ndarray, num_tokens: int, **options: Any) -> tuple[list[int], float]:
        """(tokens with timestamps, sum of their log-probabilities) of one window, by transformers' `generate`."""
        import torch
        import transformers

        given = {"language": "en", "task": "transcribe", "max_new_tokens": num_tokens} | options
        level = transformers.logging.get_verbosity()
        transformers.logging.set_verbosity_error()
        try:
            found = self.model.generate(
                self.features(sound), return_timestamps=True, force_unique_generate_call=True,
                return_dict_in_generate=True, output_scores=True, **given,
            )  # fmt: skip
        finally:
            transformers.logging.set_verbosity(level)
        scores = torch.cat(found.scores).log_softmax(-1)
        tokens = found.sequences[0, -len(scores) :].tolist()
        return tokens, float(sum(row[token] for row, token in zip(scores, tokens, strict=True)))

    def attended(self, sound: np.ndarray, token_ids: list[int], heads: list[list[int]]) -> Any:
        """What each token attends to in the encoder's rows, by head: `[T, heads, R]`, in float32."""
        import torch

        self.model.set_attn_implementation("eager")
        with torch.inference_mode():
            encoded = self.model.model.encoder(self.features(sound))
            given = {"encoder_outputs": encoded, "decoder_input_ids": torch.tensor([token_ids])}
            layers = self.model(**given, output_attentions=True).cross_attentions
        return torch.stack([layers[layer][0, head] for layer, head in heads], 1)

    def token_times(self, sound: np.ndarray, num_tokens: int, **options: Any) -> tuple[list[int], list[float]]:
        """(tokens with timestamps, when each is said) of one window, by transformers' `generate`."""
        import torch

        self.model.set_attn_implementation("eager")
        num_frames = -(-len(sound) // 160)
        mask = (torch.arange(self.features(sound).shape[-1]) < num_frames).long()[None]
        given = {"language": "en", "task": "transcribe", "max_new_tokens": num_tokens} | options
        found = self.model.generate(
            self.features(sound), attention_mask=mask, return_timestamps=True, return_token_timestamps=True,
            force_unique_generate_call=True, return_dict_in_generate=True, **given,
        )  # fmt: skip
        num_prompt = found["sequences"].shape[1] - len(found["scores"])
        return [found[name][0, num_prompt:].tolist() for name in ("sequences", "token_timestamps")]


class TransformersWords:
    """A folder's tokenizer as transformers' functions for words want it."""

    language = None

    def __init__(self, folder: Path):
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.eos_token_id = TIMED_IDS["endoftext"]

    def decode(self, token_ids: list[int], decode_with_timestamps: bool = True) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=False)

    def words(self, tokens: list[int], times: list[tuple[float, float]], language: str) -> list[Any]:
        """[(text, start, end)]"""
        from transformers.models.whisper.tokenization_whisper import _collate_word_timestamps

        found = _collate_word_timestamps(self, tokens, times, language, return_language=False)
        return [(each["text"], *each["timestamp"]) for each in found]


def sound(seed: int, seconds: float = 1.0, rate: int = RATE) -> np.ndarray:
    """A noise that swells, `[N]` float32."""
    noise = np.random.default_rng(seed)
    num_samples = int(seconds * rate)
    return (noise.normal(size=num_samples) * 0.3 * np.sin(np.arange(num_samples) / (50 * (seed + 1)))).astype(
        np.float32
    )


def write_whisper(folder: Path, seed: int = 0, scale: float = 0.15, **options: Any) -> Heard:
    """With weights large enough for mistakes to show, and a tokenizer with the words of a prompt."""
    import torch
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    model = WhisperForConditionalGeneration(WhisperConfig(**WHISPER | options)).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            is_factor = "norm" in name and name.endswith("weight")
            parameter.normal_(1.0 if is_factor else 0.0, scale, generator=generator)
    model.save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 0}))
    write_words(folder)
    return Heard(folder, model)


TEXT_IDS = 300
"""Tokens of text of a model with timestamps; behind them stand the end and the other words, as in Whisper's."""
TIMED_SPECIAL = [
    "<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|de|>", "<|fr|>", "<|translate|>", "<|transcribe|>",
    "<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>",
]  # fmt: skip
TIMED_IDS = {word.strip("<|>"): TEXT_IDS + number for number, word in enumerate(TIMED_SPECIAL)}
FIRST_TIME = TEXT_IDS + len(TIMED_SPECIAL)
TIMED_VOCAB = FIRST_TIME + NUM_ROWS + 1


def write_timed_whisper(folder: Path, seed: int = 0, scale: float = 0.15, **generation: Any) -> Heard:
    """With the order of tokens that Whisper has, and tokens of times.

    Args:
        generation: more keys of generation_config.json.
    """
    from transformers import GenerationConfig

    end, start = TIMED_IDS["endoftext"], TIMED_IDS["startoftranscript"]
    ids = {"pad_token_id": end, "bos_token_id": end, "eos_token_id": end, "decoder_start_token_id": start}
    heard = write_whisper(folder, seed, scale, vocab_size=TIMED_VOCAB, **ids)
    names = ("en", "de", "fr")
    values = {
        "eos_token_id": end, "pad_token_id": end, "bos_token_id": end, "decoder_start_token_id": start,
        "no_timestamps_token_id": TIMED_IDS["notimestamps"], "is_multilingual": True, "begin_suppress_tokens": None,
        "lang_to_id": {f"<|{name}|>": TIMED_IDS[name] for name in names}, "return_timestamps": False,
        "task_to_id": {name: TIMED_IDS[name] for name in ("transcribe", "translate")},
        "prev_sot_token_id": TIMED_IDS["startofprev"],
        "suppress_tokens": [number for word, number in TIMED_IDS.items() if word not in ("endoftext", "notimestamps")],
    } | generation  # fmt: skip
    (folder / "generation_config.json").write_text(json.dumps(values))
    heard.model.generation_config = GenerationConfig.from_dict(values)
    from tokenizers import AddedToken, Tokenizer

    write_words(folder, TEXT_IDS, [])
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_special_tokens(TIMED_SPECIAL)
    tokenizer.add_tokens([AddedToken(f"<|{n * 0.02:.2f}|>", normalized=False) for n in range(NUM_ROWS + 1)])
    assert tokenizer.get_vocab_size() == TIMED_VOCAB
    tokenizer.save(str(folder / "tokenizer.json"))
    return heard


def write_words(folder: Path, vocab_size: int = 320, special: list[str] = SPECIAL) -> None:
    """A byte-level BPE, with `SPECIAL` in front."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|endoftext|>"}))
