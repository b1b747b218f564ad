"""Speed on a GPU, beside what the same machine can do at most: ceilings are measured in the same run.

python bench/gpu.py                                # all cases, each in a process of its own
python bench/gpu.py --case ceilings --case decode-8b --json gpu.json

Shapes have dummy weights, so that no file is needed. `mix` is nano-vLLM's published one: 256 requests of 100-1024
tokens in and out, temperature 0.6. `mix-peer` runs the same through transformers' continuous batching.
No GPU has run this yet.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from throughput import SHAPES

GPU_SHAPES = {
    "0.6b": SHAPES["qwen3-0.6b"],
    "8b": {
        **SHAPES["qwen3-0.6b"],
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "tie_word_embeddings": False,
    },
}
# case: seconds it may take
CASES = {
    "ceilings": 25,
    "kernels": 30,
    "decode-0.6b": 35,
    "decode-8b": 40,
    "mix": 50,
    "mix-peer": 50,
    "sleep-8b": 50,
}
NUM_REQUESTS = 256
GIB = 1 << 30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", action="append", choices=CASES, help="may be given several times (default: all)")
    parser.add_argument("--json", type=Path, help="write all figures here")
    parser.add_argument("--here", action="store_true", help="in this process; one case")
    args = parser.parse_args()
    names = args.case or list(CASES)
    if args.here:
        [name] = names
        print(json.dumps(measure(name)))
        return
    figures: dict[str, Any] = {}
    for name in names:
        figures[name] = in_process(name)
        print(f"{name}: {json.dumps(figures[name])}", flush=True)
        if args.json:  # after every case: a time limit must not take what is known already
            args.json.write_text(json.dumps(figures, indent=1))


def in_process(name: str) -> dict[str, Any]:
    """A case's figures, or {'error': why there are none}; a fault on the device ends its process only."""
    command = [sys.executable, __file__, "--here", "--case", name]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=CASES[name])
    except subprocess.TimeoutExpired:
        return {"error": f"not done within {CASES[name]} s"}
    lines = result.stdout.strip().splitlines()
    if result.returncode != 0 or not lines:
        return {"error": (result.stderr.strip().splitlines() or ["no output"])[-1]}
    return json.loads(lines[-1])


def measure(name: str) -> dict[str, Any]:
    kind, _, shape = name.partition("-")
    if kind == "ceilings":
        return ceilings()
    if kind == "kernels":
        return kernels()
    if kind == "decode":
        return decode(shape)
    if kind == "sleep":
        return sleep(shape)
    return peer_mix() if shape == "peer" else mix()


def median_s(work: Any, repeat: int = 10, warm_up: int = 3) -> float:
    """Median of device time, by events."""
    import torch

    for _ in range(warm_up):
        work()
    seconds = []
    for _ in range(repeat):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        work()
        end.record()
        end.synchronize()
        seconds.append(start.elapsed_time(end) / 1e3)
    return statistics.median(seconds)


def ceilings() -> dict[str, float]:
    """What the machine does at most: bytes copied (read and written), bf16 products, pinned copies either way."""
    import torch

    source = torch.empty(4 * GIB, dtype=torch.uint8, device="cuda").fill_(1)
    target = torch.empty_like(source)
    copy_s = median_s(lambda: target.copy_(source))
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    product_s = median_s(lambda: a @ b)
    host = torch.empty(GIB, dtype=torch.uint8, pin_memory=True)
    part = source[:GIB]
    return {
        "copy_gb_per_s": 8 * GIB / copy_s / 1e9,
        "bf16_tflop_per_s": 2 * 8192**3 / product_s / 1e12,
        "to_host_gb_per_s": GIB / median_s(lambda: host.copy_(part, non_blocking=True)) / 1e9,
        "to_device_gb_per_s": GIB / median_s(lambda: part.copy_(host, non_blocking=True)) / 1e9,
    }


def kernels() -> dict[str, float]:
    """Paged decode at 32 x 4k, and prefill of one prompt of 8k, by the heads of the 8B shape."""
    import torch

    from lullm.ops.attention_layout import AttentionLayout
    from lullm.ops.table import select_ops

    ops = select_ops("cuda")
    shape = GPU_SHAPES["8b"]
    num_q, num_kv, size = shape["num_attention_heads"], shape["num_key_value_heads"], shape["head_dim"]
    block_size = 16

    def step(num_spans: int, query_len: int, context_len: int) -> Any:
        num_blocks = context_len // block_size
        caches = [
            torch.randn(num_spans * num_blocks, block_size, num_kv, size, device="cuda", dtype=torch.bfloat16)
            for _ in range(2)
        ]
        tables = torch.randperm(num_spans * num_blocks).view(num_spans, num_blocks)
        slots = torch.zeros(num_spans * query_len, dtype=torch.int64)
        layout = AttentionLayout([query_len] * num_spans, [context_len] * num_spans, tables, slots, block_size)
        prepared = ops.prepare_attention(layout)
        q = torch.randn(num_spans * query_len, num_q, size, device="cuda", dtype=torch.bfloat16)
        return lambda: ops.attention(q, *caches, prepared, size**-0.5)

    with torch.inference_mode():
        decode_s = median_s(step(32, 1, 4096), repeat=50)
        prefill_s = median_s(step(1, 8192, 8192))
    return {
        "decode_gb_per_s": 32 * 4096 * 2 * num_kv * size * 2 / decode_s / 1e9,
        "prefill_tflop_per_s": 4 * num_q * size * 8192**2 / 2 / prefill_s / 1e12,
    }


def build(shape: str, **options: Any) -> Any:
    from lullm import LLM

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(GPU_SHAPES[shape]))
        return LLM(
            model=folder,
            tokenizer="demo",
            load_format="dummy",
            device="cuda",
            max_model_len=4096,
            enable_prefix_caching=False,
            swap_space=0,
            **options,
        )


def decode(shape: str) -> dict[str, float]:
    """One stream, 32 tokens in and 256 out, with graphs and without."""
    from lullm import SamplingParams

    figures: dict[str, float] = {}
    for kind, eager in (("graphs", False), ("eager", True)):
        started = time.perf_counter()
        llm = build(shape, max_num_seqs=1, kv_cache_memory_bytes=2 * GIB, enforce_eager=eager)
        figures[f"{kind}_ready_s"] = time.perf_counter() - started
        params = SamplingParams(temperature=0.0, max_tokens=256, ignore_eos=True)
        seconds = []
        for _ in range(4):
            started = time.perf_counter()
            llm.generate([list(range(10, 42))], params, use_tqdm=False)
            seconds.append(time.perf_counter() - started)
        per_token = statistics.median(seconds[1:]) / 256
        model = llm.llm_engine.model_executor.driver_worker.model_runner.model
        num_bytes = sum(parameter.nbytes for parameter in model.parameters())
        if not GPU_SHAPES[shape]["tie_word_embeddings"]:  # of the embedding one row is read
            num_bytes -= model.model.embed_tokens.weight.nbytes
        figures[f"{kind}_tok_per_s"] = 1 / per_token
        figures[f"{kind}_gb_per_s"] = num_bytes / per_token / 1e9
        llm.shutdown()
    return figures


def mix_requests() -> list[tuple[list[int], int]]:
    """(token ids, tokens wanted) of nano-vLLM's mix."""
    rng = random.Random(0)
    return [
        ([rng.randrange(10, 7900) for _ in range(rng.randint(100, 1024))], rng.randint(100, 1024))
        for _ in range(NUM_REQUESTS)
    ]


def mix() -> dict[str, float]:
    from lullm import SamplingParams

    llm = build("0.6b", max_num_seqs=256, max_num_batched_tokens=8192)
    requests = mix_requests()
    prompts = [prompt for prompt, _ in requests]
    params = [SamplingParams(temperature=0.6, max_tokens=n, ignore_eos=True) for _, n in requests]
    llm.generate([prompts[0]], SamplingParams(max_tokens=8, ignore_eos=True), use_tqdm=False)
    started = time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    seconds = time.perf_counter() - started
    num_tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
    llm.shutdown()
    return {"output_tok_per_s": num_tokens / seconds, "seconds": seconds, "output_tokens": num_tokens}


def peer_mix() -> dict[str, Any]:
    """The same requests through transformers; greedy, which is the less work."""
    import torch
    import transformers
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    shape = {key: value for key, value in GPU_SHAPES["0.6b"].items() if key not in ("architectures", "torch_dtype")}
    config = AutoConfig.for_model("qwen3", **shape)
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa").eval()
    requests = mix_requests()
    generation = GenerationConfig(do_sample=False, max_new_tokens=1024, eos_token_id=-1, pad_token_id=0)
    manager = model.init_continuous_batching(generation_config=generation)
    manager.warmup()  # records its graphs, as ours are by now
    manager.start()
    started = time.perf_counter()
    for number, (prompt, wanted) in enumerate(requests):
        manager.add_request(prompt, request_id=str(number), max_new_tokens=wanted)
    num_tokens = num_done = 0
    while num_done < len(requests):
        result = manager.get_result(timeout=1)
        if result is None:
            if not manager.is_running():
                raise SystemExit("transformers' generation thread ended")
        elif result.is_finished():
            num_done += 1
            num_tokens += len(result.generated_tokens)
    seconds = time.perf_counter() - started
    manager.stop(block=True)
    return {
        "output_tok_per_s": num_tokens / seconds,
        "seconds": seconds,
        "output_tokens": num_tokens,
        "version": transformers.__version__,
    }


def sleep(shape: str) -> dict[str, float]:
    """Level 1 and back: first, again (nothing to copy), and after a change (pinned memory is there); then level 2."""
    import torch

    from lullm import SamplingParams

    llm = build(shape, max_num_seqs=8, kv_cache_memory_bytes=8 * GIB, enable_sleep_mode=True, verify_wake=False)
    params = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True)
    prompt = [list(range(10, 42))]

    def tokens() -> list[int]:
        return llm.generate(prompt, params, use_tqdm=False)[0].outputs[0].token_ids

    runner = llm.llm_engine.model_executor.driver_worker.model_runner
    expected = tokens()
    replays = dict(runner._steps.graphs._replays)
    held = torch.cuda.mem_get_info()[1] - torch.cuda.mem_get_info()[0]
    figures: dict[str, float] = {"awake_gib": held / GIB}
    norm = runner.model.model.norm.weight.clone()
    for cycle, level in (("first", 1), ("unchanged", 1), ("level1", 1), ("level2", 2)):
        if cycle == "level1":
            llm.update_weights([("model.norm.weight", norm)])
        report = llm.sleep(level=level)
        used = torch.cuda.mem_get_info()[1] - torch.cuda.mem_get_info()[0]
        started = time.perf_counter()
        restored = llm.wake_up().restored_bytes
        torch.cuda.synchronize()
        wake_s = time.perf_counter() - started
        figures |= {
            f"{cycle}_sleep_s": report.seconds,
            f"{cycle}_wake_s": wake_s,
            f"{cycle}_released": 1 - used / held,
            f"{cycle}_sleep_gb_per_s": report.backed_up_bytes / report.seconds / 1e9,
            f"{cycle}_wake_gb_per_s": restored / wake_s / 1e9,
        }
        if tokens() != expected:
            raise SystemExit(f"other tokens after {cycle}")
    figures["recaptured"] = float(runner._steps.graphs._replays != replays)
    llm.shutdown()
    return figures


if __name__ == "__main__":
    main()
