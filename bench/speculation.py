"""Decoding with and without guessed tokens (`speculative_config`), in turn: tokens per second, and how many were right.

    python bench/speculation.py --model DIR
    python bench/speculation.py --model DIR --text FILE --streams 1

A prompt is a passage of the text, twice: what follows may repeat it. Without a text the prompt is random ids, whose
answers a model with random weights soon repeats. The answers with and without guesses are compared.
"""

import argparse
import random
import time
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo", help="model folder, GGUF file, hub id or 'demo'")
    parser.add_argument("--text", type=Path, help="file with passages (default: random ids)")
    parser.add_argument("--streams", type=int, action="append", help="may be given several times (default: 1, 8)")
    parser.add_argument("--input-len", type=int, default=128, help="tokens of a passage (default: 128)")
    parser.add_argument("--output-len", type=int, default=128)
    parser.add_argument("--guesses", type=int, default=5, help="num_speculative_tokens (default: 5)")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()

    from lullm import LLM, SamplingParams

    config = {"method": "ngram", "num_speculative_tokens": args.guesses, "prompt_lookup_max": 4, "prompt_lookup_min": 2}
    options = {"enable_prefix_caching": False, "kv_cache_memory_bytes": 1 << 30}
    plain, guessing = LLM(args.model, **options), LLM(args.model, speculative_config=config, **options)
    rng = random.Random(0)
    tokens = [rng.randrange(3, 1000) for _ in range(100_000)]
    if args.text:
        tokens = plain.get_tokenizer().encode(args.text.read_text())
    params = SamplingParams(temperature=args.temperature, seed=0, max_tokens=args.output_len, ignore_eos=True)
    for num_streams in args.streams or (1, 8):
        starts = [rng.randrange(max(len(tokens) - args.input_len, 1)) for _ in range(num_streams)]
        passages = [tokens[start : start + args.input_len] for start in starts]
        prompts = [{"prompt_token_ids": 2 * passage if args.text else passage} for passage in passages]
        for number in range(-1, args.rounds):
            before, found = guessing.llm_engine.stats(), []
            for llm in (plain, guessing):
                started = time.perf_counter()
                outputs = llm.generate(prompts, params, use_tqdm=False)
                found.append((time.perf_counter() - started, [output.outputs[0].token_ids for output in outputs]))
            after = guessing.llm_engine.stats()
            if number < 0:  # records the steps
                continue
            num_guessed = after.draft_tokens_total - before.draft_tokens_total
            num_right = after.accepted_tokens_total - before.accepted_tokens_total
            per_s = [num_streams * args.output_len / seconds for seconds, _ in found]
            print(
                f"{num_streams:3} streams: {per_s[0]:7.1f} -> {per_s[1]:7.1f} tok/s, x{per_s[1] / per_s[0]:.2f}; "
                f"{num_guessed} guessed, {num_right / max(num_guessed, 1):.0%} right, "
                f"answers {'equal' if found[0][1] == found[1][1] else 'DIFFER'}",
                flush=True,
            )


if __name__ == "__main__":
    main()
