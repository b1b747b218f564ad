"""Guided decoding beside plain decoding: the same streams with a JSON schema and without, in turn, in one engine.

python bench/guided.py                          # the demo model: the highest cost, since a step takes 2 ms
python bench/guided.py --shape qwen3-0.6b       # dummy weights, and a tokenizer made of as many tokens as the model has
python bench/guided.py --shape qwen3-0.6b --max-length 30       # strings have a bound: each token is counted against it
python bench/guided.py --shape qwen3-0.6b --max-length 30 --obedient    # the model says by itself what fits, mostly

The schema asks for a list that does not end, so that all streams have the same length. Of a made tokenizer's
tokens 97 % are letters, up to 16 of them; the others are digits and signs, up to 4.

Dummy weights say what does not fit nearly always; a model that was trained for it says what fits. `--obedient` does so:
of the tokens that the first guided run led to, 98 % are the best ones of later runs, by a bonus on their logits.
"""

import argparse
import json
import random
import shutil
import statistics
import string
import tempfile
import time
from pathlib import Path

from shape import SHAPES


def schema(max_length: int | None) -> dict[str, object]:
    """A list of 1000 records and more."""
    text = {"type": "string"} if max_length is None else {"type": "string", "maxLength": max_length}
    record = {
        "type": "object",
        "properties": {
            "name": text,
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "kind": {"enum": ["person", "robot", "cat"]},
            "tags": {"type": "array", "items": text, "maxItems": 4},
        },
        "required": ["name", "age", "kind", "tags"],
        "additionalProperties": False,
    }
    return {"type": "array", "items": record, "minItems": 1000}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, help="dummy weights of this shape instead of the demo model")
    parser.add_argument("--num-prompts", type=int, default=32)
    parser.add_argument("--input-len", type=int, default=32)
    parser.add_argument("--output-len", type=int, default=64)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--max-length", type=int, help="of strings, in the schema")
    parser.add_argument("--obedient", action="store_true", help="the best token is mostly one that fits")
    parser.add_argument("--repeat", type=int, default=5)
    args = parser.parse_args()
    from lullm import LLM, SamplingParams, StructuredOutputsParams

    with tempfile.TemporaryDirectory() as folder:
        options = {"model": "demo"}
        if args.shape:
            make_folder(Path(folder), SHAPES[args.shape])
            options = {"model": folder, "load_format": "dummy"}
        length = args.input_len + args.output_len
        llm = LLM(**options, max_model_len=length, enable_prefix_caching=False)
        rng = random.Random(0)
        prompts = [[rng.randrange(5, 2000) for _ in range(args.input_len)] for _ in range(args.num_prompts)]
        common = {"temperature": args.temperature, "max_tokens": args.output_len, "ignore_eos": True, "seed": 1}
        plain = SamplingParams(**common)
        guided = SamplingParams(**common, structured_outputs=StructuredOutputsParams(json=schema(args.max_length)))
        seconds: dict[str, list[float]] = {"plain": [], "guided": []}
        if args.obedient:
            obey([output.outputs[0].token_ids for output in llm.generate(prompts, guided, use_tqdm=False)])
        for number in range(args.repeat + 1):
            for name, params in (("plain", plain), ("guided", guided)):
                started = time.perf_counter()
                outputs = llm.generate(prompts, params, use_tqdm=False)
                if number:  # the first round warms up
                    seconds[name].append(time.perf_counter() - started)
                assert all(len(output.outputs[0].token_ids) == args.output_len for output in outputs)
        llm.shutdown()
    num_tokens = args.num_prompts * args.output_len
    speed = {name: num_tokens / statistics.median(found) for name, found in seconds.items()}
    ratios = [one / other for one, other in zip(seconds["plain"], seconds["guided"], strict=True)]
    print(
        f"{args.shape or 'demo'}, {args.num_prompts} x ({args.input_len} in, {args.output_len} out): "
        f"plain {speed['plain']:.1f} tokens/s, guided {speed['guided']:.1f}, "
        f"ratio {speed['guided'] / speed['plain']:.3f} ({min(ratios):.3f}-{max(ratios):.3f})"
    )


def obey(texts: list[list[int]]) -> None:
    """Have replayed decodes of as many rows as there are texts prefer their tokens, row by row and in turn."""
    import torch

    from lullm.step.graphs import DecodeGraphs

    rng, run, place = random.Random(1), DecodeGraphs.run, 0
    wanted, length = torch.tensor(texts), len(texts[0])

    def preferring(graphs: DecodeGraphs, size: int) -> tuple[torch.Tensor, ...]:
        nonlocal place
        logits, tokens = run(graphs, size)
        if size < len(texts):
            return logits, tokens
        place = place % (length - 1) + 1  # the first token comes with the prompt
        rows = torch.tensor([row for row in range(len(texts)) if rng.random() < 0.98])
        best = wanted[rows, place]
        logits[rows, best] += 100.0
        tokens[rows] = best
        return logits, tokens

    DecodeGraphs.run = preferring


def make_folder(folder: Path, shape: dict[str, object]) -> None:
    """A config and a tokenizer with a token for each row of the embedding."""
    from lullm.weights.folder import DEMO_FOLDER

    (folder / "config.json").write_text(json.dumps(shape))
    shutil.copy(DEMO_FOLDER / "tokenizer_config.json", folder)
    tokenizer = json.loads((DEMO_FOLDER / "tokenizer.json").read_text())
    model, rng = tokenizer["model"], random.Random(0)
    pieces = [piece for piece in model["vocab"] if piece.isascii() and len(piece) == 1]
    words = [piece for piece in pieces if piece in string.ascii_letters]
    signs = [piece for piece in pieces if piece in string.digits + '{}[]":,.-_/']
    while len(model["vocab"]) < shape["vocab_size"]:
        known, longest = (words, 16) if rng.random() < 0.97 else (signs, 4)
        left, right = rng.choice(known), rng.choice(known)
        if len(left) + len(right) <= longest and left + right not in model["vocab"]:
            model["vocab"][left + right] = len(model["vocab"])
            model["merges"].append([left, right])
            known.append(left + right)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))


if __name__ == "__main__":
    main()
