"""Decoding with and without guessed tokens (`speculative_config`), in turn: tokens per second, and how many were right.

    python bench/speculation.py --model DIR                         # n-grams
    python bench/speculation.py --model DIR --text FILE --streams 1
    python bench/speculation.py --method suffix --temperature 1      # rollouts: rounds have other seeds
    python bench/speculation.py --model DIR --draft SMALLER --guesses 3
    python bench/speculation.py --model DIR --draft-layers 4        # the draft model: the model's first layers

The number of guesses is adaptive, and fixed. A prompt of n-grams is a passage of the text, twice: what follows may
repeat it. For suffixes and a draft model it is a passage. Without a text the prompt is random ids, whose answers a
model with random weights soon repeats. The answers with and without guesses are compared.
"""

import argparse
import json
import random
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo", help="model folder, GGUF file, hub id or 'demo'")
    parser.add_argument("--method", choices=("ngram", "suffix"), default="ngram", help="without a draft model")
    parser.add_argument("--draft", help="a draft model, in place of n-grams")
    parser.add_argument("--draft-layers", type=int, help="the draft model is the model's first layers, so many")
    parser.add_argument("--text", type=Path, help="file with passages (default: random ids)")
    parser.add_argument("--streams", type=int, action="append", help="may be given several times (default: 1, 8)")
    parser.add_argument("--input-len", type=int, default=128, help="tokens of a passage (default: 128)")
    parser.add_argument("--output-len", type=int, default=128)
    parser.add_argument("--guesses", type=int, default=5, help="num_speculative_tokens (default: 5)")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, help="default: a core each")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if args.draft_layers:
            args.draft = cut(args.model, Path(folder), args.draft_layers)
        compare(args)


def compare(args: argparse.Namespace) -> None:
    from lullm import LLM, SamplingParams

    config: dict[str, Any] = {"method": "suffix"}
    if args.draft:
        config = {"model": args.draft}
    elif args.method == "ngram":
        config = {"method": "ngram", "prompt_lookup_max": 4, "prompt_lookup_min": 2}
    options = {"enable_prefix_caching": False, "kv_cache_memory_bytes": 1 << 30, "threads": args.threads}
    engines = {"plain": LLM(args.model, **options)}
    for name in ("adaptive", "fixed"):
        guessing = {**config, "num_speculative_tokens": args.guesses, "adaptive": name == "adaptive"}
        engines[name] = LLM(args.model, speculative_config=guessing, **options)
    rng = random.Random(0)
    tokens = [rng.randrange(3, 1000) for _ in range(100_000)]
    if args.text:
        tokens = engines["plain"].get_tokenizer().encode(args.text.read_text())
    for num_streams in args.streams or (1, 8):
        starts = [rng.randrange(max(len(tokens) - args.input_len, 1)) for _ in range(num_streams)]
        passages = [tokens[start : start + args.input_len] for start in starts]
        is_twice = args.text and not args.draft and args.method == "ngram"
        prompts = [{"prompt_token_ids": 2 * passage if is_twice else passage} for passage in passages]
        for number in range(-1, args.rounds):
            plain_s, expected = 0.0, []
            params = SamplingParams(
                temperature=args.temperature, seed=number + 1, max_tokens=args.output_len, ignore_eos=True
            )
            for name, llm in engines.items():
                before, started = llm.llm_engine.stats(), time.perf_counter()
                outputs = llm.generate(prompts, params, use_tqdm=False)
                seconds, after = time.perf_counter() - started, llm.llm_engine.stats()
                answers = [output.outputs[0].token_ids for output in outputs]
                if name == "plain":
                    plain_s, expected = seconds, answers
                    continue
                if number < 0:  # records the steps, and measures what they cost
                    continue
                num_guessed = after.draft_tokens_total - before.draft_tokens_total
                num_right = after.accepted_tokens_total - before.accepted_tokens_total
                per_s = [num_streams * args.output_len / each for each in (plain_s, seconds)]
                print(
                    f"{num_streams:3} streams, {name:8}: {per_s[0]:7.1f} -> {per_s[1]:7.1f} tok/s, "
                    f"x{per_s[1] / per_s[0]:.2f}; {num_guessed} guessed, {num_right / max(num_guessed, 1):.0%} right, "
                    f"answers {'equal' if answers == expected else 'DIFFER'}",
                    flush=True,
                )


def cut(model: str, folder: Path, num_layers: int) -> str:
    """A folder with the first layers of a model in one safetensors file."""
    from safetensors.torch import load_file, save_file

    from lullm.weights.folder import resolve_model

    source = resolve_model(model)
    for path in source.glob("*.json"):
        shutil.copy(path, folder)
    known = json.loads((source / "config.json").read_text())
    layer_types = {"layer_types": known["layer_types"][:num_layers]} if known.get("layer_types") else {}
    (folder / "config.json").write_text(json.dumps({**known, "num_hidden_layers": num_layers, **layer_types}))
    weights = load_file(source / "model.safetensors")
    kept = {name: tensor for name, tensor in weights.items() if _layer(name) < num_layers}
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    return str(folder)


def _layer(name: str) -> int:
    """The number of a tensor's layer; -1: none."""
    head, _, tail = name.partition(".layers.")
    return int(tail.partition(".")[0]) if tail else -1


if __name__ == "__main__":
    main()
