"""A GGUF file in lullm and in llama.cpp: prefill and decode of one sequence, on the same file, in one run.

    python bench/gguf_file.py                                        lullm alone
    python bench/gguf_file.py --peer PYTHON                          beside llama-cpp-python of that interpreter
    python bench/gguf_file.py --file model.gguf --threads 2

Without `--file`, a file of Qwen3-0.6B's shape with random blocks is written (by the `gguf` library): Q4_K, and Q6_K
where Q4_K_M has it. The two take turns, each in a process of its own; the best of all rounds counts.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROMPT, DECODED = 512, 64
LAYERS, HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 28, 1024, 3072, 16, 8, 128, 151936


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", type=Path)
    parser.add_argument(
        "--format", default="Q4_K_M", help="of the file that is written: Q4_K_M, Q4_K, Q8_0, Q4_0, Q6_K"
    )
    parser.add_argument("--keep", type=Path, help="write it here, and leave it")
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--vocab-size", type=int, default=VOCAB)
    parser.add_argument("--peer", help="an interpreter that has llama_cpp")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--one", choices=["lullm", "llama.cpp"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        run = run_lullm if args.one == "lullm" else run_llama
        print(json.dumps(run(args.file, args.threads, args.rounds)))
        return
    with tempfile.TemporaryDirectory() as folder:
        path = args.file or args.keep or Path(folder, "model.gguf")
        if not path.exists():
            write_file(path, args.format, args.layers, args.vocab_size)
        measure(path, args)


def measure(path: Path, args: argparse.Namespace) -> None:
    """Print a line per engine and, with a peer, the ratios."""
    programs = {"lullm": sys.executable} | ({"llama.cpp": args.peer} if args.peer else {})
    best: dict[str, list[float]] = {name: [0.0, 0.0] for name in programs}
    print(f"{path.name}, {path.stat().st_size / 2**20:.0f} MiB, {args.threads} threads")
    for name, python in programs.items():
        command = [python, __file__, "--one", name, "--file", str(path), "--threads", str(args.threads)]
        done = subprocess.run([*command, "--rounds", str(args.rounds)], capture_output=True, text=True)
        if done.returncode:
            print(f"{name}: left out, it failed: {done.stderr.strip().splitlines()[-1:]}")
            continue
        best[name] = json.loads(done.stdout.strip().splitlines()[-1])
        print(f"{name:10} prefill {best[name][0]:7.0f} tok/s   decode {best[name][1]:6.1f} tok/s")
    if all(rates[1] for rates in best.values()) and len(best) == 2:
        ratios = [ours / theirs for ours, theirs in zip(best["lullm"], best["llama.cpp"], strict=True)]
        print(f"ratio      prefill {ratios[0]:7.2f} x       decode {ratios[1]:6.2f} x")


def prompt(seed: int) -> list[int]:
    """Random tokens; another prompt each time, so that nothing is found in a cache."""
    return [(seed * 7919 + i * 104729) % 1000 + 300 for i in range(PROMPT)]


def run_lullm(path: Path, threads: int, rounds: int) -> list[float]:
    from lullm import LLM

    llm = LLM(str(path), dtype="bfloat16", max_model_len=1024, max_num_batched_tokens=1024, threads=threads)
    best = [0.0, 0.0]
    for number in range(rounds + 1):  # the first one warms up
        once, many = (lullm_seconds(llm, 2 * number, 1), lullm_seconds(llm, 2 * number + 1, DECODED + 1))
        if number:
            best = [max(best[0], PROMPT / once), max(best[1], DECODED / (many - once))]
    return best


def lullm_seconds(llm, seed: int, num_tokens: int) -> float:  # type: ignore[no-untyped-def]
    """Of one prompt and so many tokens."""
    from lullm import SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
    start = time.perf_counter()
    llm.generate({"prompt_token_ids": prompt(seed)}, params, use_tqdm=False)
    return time.perf_counter() - start


def run_llama(path: Path, threads: int, rounds: int) -> list[float]:
    from llama_cpp import Llama

    llm = Llama(
        str(path), n_ctx=1024, n_batch=1024, n_ubatch=512, n_threads=threads, n_threads_batch=threads, verbose=False
    )
    best = [0.0, 0.0]
    for number in range(rounds + 1):
        llm.reset()
        start = time.perf_counter()
        llm.eval(prompt(number))
        once = time.perf_counter() - start
        for i in range(DECODED):
            llm.eval([300 + i])
        many = time.perf_counter() - start - once
        if number:
            best = [max(best[0], PROMPT / once), max(best[1], DECODED / many)]
    return best


def write_file(path: Path, kind: str, layers: int, vocab_size: int) -> None:
    """Random blocks with small factors; a byte-level vocabulary, filled up with tokens that no text has."""
    import gguf
    import numpy as np

    types, rng = gguf.GGMLQuantizationType, np.random.default_rng(0)
    halves = {types.Q4_K: (0, 2), types.Q6_K: (208,), types.Q8_0: (0,), types.Q4_0: (0,)}
    noise = rng.integers(0, 256, 1 << 24, dtype=np.uint8)

    def blocks(rows: int, columns: int, block: "gguf.GGMLQuantizationType") -> "np.ndarray":
        values, size = gguf.GGML_QUANT_SIZES[block]
        found = np.resize(noise, rows * (columns // values) * size).reshape(-1, size).copy()
        for at in halves[block]:
            found[:, at : at + 2] = np.full((len(found), 1), 2e-5 * (8 if at else 1), np.float16).view(np.uint8)
        return found.reshape(rows, -1)

    plain = types[kind.removesuffix("_M")]
    writer = gguf.GGUFWriter(path, "qwen3")
    writer.add_context_length(4096)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e6)
    letters = [chr(c) for c in (*range(33, 127), *range(161, 173), *range(174, 256), *range(256, 324))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    letters.append("ab")
    writer.add_token_list([*letters, *(f"[PAD{i}]" for i in range(vocab_size - len(letters)))])
    writer.add_token_types([1] * len(letters) + [5] * (vocab_size - len(letters)))
    writer.add_token_merges(["a b"])  # llama.cpp wants one
    writer.add_eos_token_id(0)
    large = types.Q6_K if kind == "Q4_K_M" else plain
    writer.add_tensor("token_embd.weight", blocks(vocab_size, HIDDEN, large), raw_dtype=large)
    writer.add_tensor("output_norm.weight", np.ones(HIDDEN, np.float32))
    for layer in range(layers):
        # As llama.cpp's Q4_K_M: the first and last eighth of the layers, and every third between.
        is_large = layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2
        some = large if is_large else plain
        matrices = {
            "attn_q": (HEADS * HEAD_DIM, HIDDEN, plain), "attn_k": (KV_HEADS * HEAD_DIM, HIDDEN, plain),
            "attn_v": (KV_HEADS * HEAD_DIM, HIDDEN, some), "attn_output": (HIDDEN, HEADS * HEAD_DIM, plain),
            "ffn_gate": (INNER, HIDDEN, plain), "ffn_up": (INNER, HIDDEN, plain), "ffn_down": (HIDDEN, INNER, some),
        }  # fmt: skip
        for name, (rows, columns, block) in matrices.items():
            writer.add_tensor(f"blk.{layer}.{name}.weight", blocks(rows, columns, block), raw_dtype=block)
        norms = {"attn_norm": HIDDEN, "ffn_norm": HIDDEN, "attn_q_norm": HEAD_DIM, "attn_k_norm": HEAD_DIM}
        for name, size in norms.items():
            writer.add_tensor(f"blk.{layer}.{name}.weight", np.ones(size, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
