"""Perplexity of a checkpoint over texts: what a type, a quantization or a KV cache costs a trained model.

    python bench/perplexity.py MODEL --text FILE... [--only bfloat16 int4 ...]

The texts are joined, cut to `--num-tokens` and read in windows of `--window` tokens, each on its own behind the
tokenizer's first token, if it adds one. Per variant: the perplexity; the mean of what a token's log-probability
differs by from that of the first variant, with its standard error; and how often the likeliest token is the same.
"""

import argparse
import math
import statistics
from pathlib import Path

from lullm import LLM, SamplingParams

VARIANTS = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "int8 KV": {"dtype": "bfloat16", "kv_cache_dtype": "int8"},
    "fp8 KV": {"dtype": "bfloat16", "kv_cache_dtype": "fp8"},
    "int8": {"dtype": "bfloat16", "quantization": "int8"},
    "int4": {"dtype": "bfloat16", "quantization": "int4"},
    "int4, int8 KV": {"dtype": "bfloat16", "quantization": "int4", "kv_cache_dtype": "int8"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--text", nargs="+", type=Path, required=True)
    parser.add_argument("--num-tokens", type=int, default=8192)
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--only", nargs="+", choices=VARIANTS, default=[*VARIANTS])
    args = parser.parse_args()
    text = "\n\n".join(path.read_text() for path in args.text)
    first: list[tuple[float, int]] = []
    for name in args.only:
        found = scores(args.model, VARIANTS[name], text, args.num_tokens, args.window)
        if not first:
            first = found
            print(f"{len(found)} tokens\n{'':16}{'perplexity':>11}{'log-probability':>24}{'same best':>11}")
        losses = [ours - theirs for (ours, _), (theirs, _) in zip(found, first, strict=True)]
        error = statistics.stdev(losses) / math.sqrt(len(losses))
        same = statistics.mean(ours == theirs for (_, ours), (_, theirs) in zip(found, first, strict=True))
        perplexity = math.exp(-statistics.mean(score for score, _ in found))
        print(f"{name:16}{perplexity:11.4f}{statistics.mean(losses):+15.5f} ± {error:.5f}{same:11.1%}", flush=True)


def scores(model: str, options: dict, text: str, num_tokens: int, window: int) -> list[tuple[float, int]]:
    """Of each token its log-probability, and the likeliest token in its place."""
    params = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=1)
    found = []
    with LLM(model, **options, max_model_len=window + 2, max_num_seqs=8) as llm:
        tokenizer = llm.get_tokenizer()
        start = tokenizer.encode("")
        token_ids = tokenizer.encode(text, add_special_tokens=False)[:num_tokens]
        windows = [start + token_ids[at : at + window] for at in range(0, len(token_ids), window)]
        for output in llm.generate(windows, params, use_tqdm=False):
            for token_id, candidates in zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True):
                best = max(candidates, key=lambda candidate: candidates[candidate].logprob)
                found.append((candidates[token_id].logprob, best))
    return found


if __name__ == "__main__":
    main()
