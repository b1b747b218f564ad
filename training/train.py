"""Train the demo model from nothing: `python -m training.train --out DIR`.

Corpus, tokenizer, weights and the order of the batches all follow from the seed. On one machine two runs write the
same bytes; another kind of processor may round differently and end in slightly different weights.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor

from lullm.weights.folder import DEMO_FOLDER
from training.batches import ROW_KINDS, RowKind, RowPacker
from training.corpus.corpus import END_OF_TEXT, TURN_END, sample_text
from training.dense import DenseConfig, DenseQwen3
from training.tokenization import tokenizer_config, train_tokenizer

THREADS = 2
SHIPPED_STEPS = 1200
TOKENIZER_DOCUMENTS = 40000

# Muon moves the matrices inside the layers, AdamW the embedding and the norm weights.
_MATRIX_RATE = 0.02
_EMBEDDING_RATE = 0.004
_WARM_UP = 0.02
_DECAY = 0.9


def new_model(config: DenseConfig, seed: int) -> DenseQwen3:
    """Return a model with normal(0, 0.02) weights; the outputs of each layer start smaller by its depth."""
    generator = torch.Generator().manual_seed(seed)
    model = DenseQwen3(config)
    deep = (2 * config.num_hidden_layers) ** -0.5
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim == 2:
                shrink = deep if name.endswith(("o_proj.weight", "down_proj.weight")) else 1.0
                weight.normal_(0.0, 0.02 * shrink, generator=generator)
    return model


def rate_factor(step: int, steps: int) -> float:
    """Return the learning rate's share of its peak: warm-up, plateau, then a straight line to zero."""
    warm_up, decay = max(1, int(steps * _WARM_UP)), max(1, int(steps * _DECAY))
    return min(1.0, (step + 1) / warm_up, (steps - step) / decay)


def batch_loss(model: DenseQwen3, batch: tuple[Tensor, Tensor, Tensor], dtype: torch.dtype) -> tuple[Tensor, int]:
    """Return the summed cross-entropy (nats) over the learned targets of one batch, and how many they are."""
    inputs, targets, learn = batch
    at = learn.reshape(-1).nonzero()[:, 0]
    hidden = model.hidden(inputs, dtype).flatten(0, 1).index_select(0, at)
    wanted = targets.reshape(-1).index_select(0, at)
    return F.cross_entropy(model.logits(hidden).float(), wanted, reduction="sum"), len(at)


def train(
    config: DenseConfig,
    tokenizer: Tokenizer,
    steps: int,
    seed: int,
    kinds: Sequence[RowKind] = ROW_KINDS,
    dtype: torch.dtype = torch.bfloat16,
    log_every: int = 50,
    after_step: Callable[[int, DenseQwen3], None] | None = None,
) -> tuple[DenseQwen3, list[float]]:
    """Train for `steps` steps and return the float32 model and the loss of every step (nats per learned token).

    `after_step` is called with the number of steps done and the model.
    """
    model = new_model(config, seed)
    matrices = [weight for name, weight in model.named_parameters() if weight.ndim == 2 and "embed" not in name]
    others = [weight for name, weight in model.named_parameters() if weight.ndim == 1 or "embed" in name]
    optimizers = (
        torch.optim.Muon(matrices, lr=_MATRIX_RATE, weight_decay=0.01, momentum=0.95),
        torch.optim.AdamW(others, lr=_EMBEDDING_RATE, betas=(0.9, 0.95), weight_decay=0.0, fused=True),
    )
    peaks = (_MATRIX_RATE, _EMBEDDING_RATE)
    packers = [RowPacker(kind, tokenizer, f"rows:{seed}:{number}") for number, kind in enumerate(kinds)]
    losses: list[float] = []
    started = time.monotonic()
    for step in range(steps):
        batches = [packer.batch() for packer, kind in zip(packers, kinds, strict=True) if step % kind.every == 0]
        learned = sum(int(learn.sum()) for _, _, learn in batches)
        total = 0.0
        for batch in batches:
            loss, _ = batch_loss(model, batch, dtype)
            (loss / learned).backward()
            total += loss.item()
        for optimizer, peak in zip(optimizers, peaks, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = peak * rate_factor(step, steps)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(total / learned)
        if log_every and (step % log_every == 0 or step == steps - 1):
            print(f"step {step:5d}/{steps}  loss {losses[-1]:.4f}  {time.monotonic() - started:6.0f} s", flush=True)
        if after_step is not None:
            after_step(step + 1, model)
    return model, losses


def _write_json(path: Path, fields: dict[str, Any]) -> None:
    path.write_text(json.dumps(fields, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def save(folder: Path, model: DenseQwen3, tokenizer: Tokenizer) -> None:
    """Write a Hugging Face style folder: config, generation config, tokenizer and bfloat16 weights."""
    folder.mkdir(parents=True, exist_ok=True)
    end_of_text, turn_end = tokenizer.token_to_id(END_OF_TEXT), tokenizer.token_to_id(TURN_END)
    _write_json(
        folder / "config.json",
        {
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            **model.config.to_json(),
            "hidden_act": "silu",
            "attention_bias": False,
            "attention_dropout": 0.0,
            "tie_word_embeddings": True,
            "use_cache": True,
            "torch_dtype": "bfloat16",
            "bos_token_id": end_of_text,
            "eos_token_id": turn_end,
            "pad_token_id": end_of_text,
        },
    )
    _write_json(
        folder / "generation_config.json",
        {"do_sample": False, "eos_token_id": [turn_end, end_of_text], "pad_token_id": end_of_text},
    )
    _write_json(folder / "tokenizer_config.json", tokenizer_config(model.config.max_position_embeddings))
    tokenizer.save(str(folder / "tokenizer.json"))
    weights = {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in sorted(model.state_dict().items())}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)  # it is written readable by its owner only


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the training from the command line."""
    parser = argparse.ArgumentParser(prog="python -m training.train", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=DEMO_FOLDER, help="folder to write")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=SHIPPED_STEPS, help="training steps (default: the shipped run)")
    parser.add_argument("--snapshot-every", type=int, default=0, metavar="N", help="also write OUT every N steps")
    options = parser.parse_args(arguments)
    torch.set_num_threads(THREADS)
    torch.use_deterministic_algorithms(True)
    # Nothing reads unwritten memory; filling it costs 9 %. The type checker does not see the module's property.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    started = time.monotonic()
    tokenizer = train_tokenizer(sample_text(options.seed, TOKENIZER_DOCUMENTS), DenseConfig.vocab_size)
    config = DenseConfig(vocab_size=tokenizer.get_vocab_size())

    def snapshot(done: int, model: DenseQwen3) -> None:
        if options.snapshot_every and done % options.snapshot_every == 0:
            save(options.out, model, tokenizer)

    model, _ = train(config, tokenizer, options.steps, options.seed, after_step=snapshot)
    save(options.out, model, tokenizer)
    # On a machine shared with others the wall clock says little; CPU seconds over threads is the time when idle.
    wall, idle = time.monotonic() - started, time.process_time() / THREADS
    print(f"wrote {options.out} after {wall:.0f} s, of which {idle:.0f} s with {THREADS} threads at work")


if __name__ == "__main__":
    main()
