"""Tiny random BART checkpoints, as people download them, beside transformers' model."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kit.folder.checkpoint import write_tokenizer

BART = {
    "vocab_size": 320, "d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 96, "decoder_ffn_dim": 80, "max_position_embeddings": 64,
    "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2,
}  # fmt: skip


@dataclass
class Read:
    """A folder, and the same in transformers."""

    folder: Path
    model: Any

    def continued(self, given: list[int], prompt: list[int], num_tokens: int) -> tuple[list[int], list[float]]:
        """(greedy tokens, their log-probabilities), each step from the start, in float32."""
        import torch

        ids, tokens, logprobs = list(prompt), [], []
        with torch.inference_mode():
            for _ in range(num_tokens):
                inputs = {"input_ids": torch.tensor([given]), "decoder_input_ids": torch.tensor([ids])}
                row = self.model(**inputs).logits[0, -1].log_softmax(-1)
                tokens.append(int(row.argmax()))
                logprobs.append(float(row[tokens[-1]]))
                ids.append(tokens[-1])
        return tokens, logprobs


def write_bart(folder: Path, seed: int = 0, **options: Any) -> Read:
    """With weights large enough for mistakes to show, a bias on the logits among them."""
    import torch
    from transformers import BartConfig, BartForConditionalGeneration

    model = BartForConditionalGeneration(BartConfig(**BART | options)).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            is_factor = "norm" in name and name.endswith("weight")
            parameter.normal_(1.0 if is_factor else 0.0, 0.15, generator=generator)
        model.final_logits_bias.normal_(0.0, 0.3, generator=generator)
    model.save_pretrained(folder)
    rules = {"eos_token_id": 2, "decoder_start_token_id": 2, "forced_bos_token_id": 0}
    (folder / "generation_config.json").write_text(json.dumps(rules))
    write_tokenizer(folder)
    return Read(folder, model)
