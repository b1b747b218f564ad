"""Speed on a GPU, beside what the same machine can do at most: ceilings are measured in the same run.

python bench/gpu.py                                # all cases, each in a process of its own
python bench/gpu.py --case ceilings --case decode-8b --json gpu.json

Shapes have dummy weights, so that no file is needed. `mix` is nano-vLLM's published one: 256 requests of 100-1024
tokens in and out, temperature 0.6. `mix-peer` runs the same through transformers' continuous batching.
A case says what it knows as soon as it knows it, so that a time limit takes the rest only.
`tests/gpu/test_rehearsal.py` runs every case at toy size without one.
"""

import argparse
import contextlib
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gpu_kernels
from engine_part import captured_graphs_of, model_of, timed_parts
from gpu_kernels import GIB, GPU_SHAPES, median_s, require_gpu
from gpu_parts.line import Lines, write_whole

# case: seconds it may take
CASES = {
    "ceilings": 20,
    "kernels": 50,
    "decode-0.6b": 35,
    "decode-8b": 40,
    "mix": 45,
    "mix-peer": 180,
    "sleep-8b": 66,
}
PEER_WINDOW_S = 150.0
"""It may take so long; of a run that is not done then, the requests count that are."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", action="append", choices=CASES, help="may be given several times (default: all)")
    parser.add_argument("--json", type=Path, help="write all figures here")
    parser.add_argument("--here", action="store_true", help="in this process; one case")
    args = parser.parse_args()
    require_gpu()
    names = args.case or list(CASES)
    if args.here:
        [name] = names
        for part in measure(name):
            print(json.dumps(part), flush=True)
        return
    figures: dict[str, Any] = {}
    for name in names:
        figures[name] = in_process(name)
        print(f"{name}: {json.dumps(figures[name])}", flush=True)
        if args.json:  # after every case: a time limit must not take what is known already
            write_whole(args.json, json.dumps(figures, indent=1))


def in_process(name: str) -> dict[str, Any]:
    """A case's figures, with 'error' if it could not go on to its end; a fault on the device ends its process only."""
    command = [sys.executable, __file__, "--here", "--case", name]
    case = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        out, faults = case.communicate(timeout=CASES[name])
    except subprocess.TimeoutExpired:
        case.kill()
        out, faults = case.communicate()
        faults += f"\nnot done within {CASES[name]} s"
    figures: dict[str, Any] = {}
    for line in out.splitlines():
        with contextlib.suppress(json.JSONDecodeError):
            figures |= json.loads(line)
    print(faults, file=sys.stderr, flush=True)
    if case.returncode != 0 or not figures:
        tail = faults.strip().splitlines() or [f"no output, exit status {case.returncode}"]
        figures |= {"error": tail[-1], "tail": tail[-12:]}
    return figures


def run_cases(lines: Lines, names: tuple[str, ...]) -> None:
    """As a row of `gpu_check.py`."""
    lines.plan(names)
    for name in names:
        figures = in_process(name)
        figures.pop("tail", None)
        error = figures.pop("error", None)
        if error is None:
            lines.passed(name, **figures)
        elif name == "mix-peer":  # another's fault is no fault of ours
            lines.skipped(name, error)
        else:
            lines.failed(name, error, **figures)


def run_sleep(lines: Lines) -> None:
    run_cases(lines, ("sleep-8b",))


def run_goals(lines: Lines) -> None:
    run_cases(lines, ("decode-8b", "decode-0.6b", "mix"))


def run_kernels(lines: Lines) -> None:
    run_cases(lines, ("kernels",))


def run_peer(lines: Lines) -> None:
    run_cases(lines, ("mix-peer",))


def measure(name: str) -> Iterator[dict[str, Any]]:
    """The figures of a case, part by part."""
    kind, _, shape = name.partition("-")
    if kind == "decode":
        yield from decode(shape)
    elif kind == "sleep":
        yield from sleep(shape)
    elif kind == "mix":
        yield peer_mix() if shape == "peer" else mix()
    else:
        yield ceilings() if kind == "ceilings" else gpu_kernels.kernels()


def ceilings() -> dict[str, float]:
    """What the machine does at most: bytes copied (read and written), bf16 products, pinned copies either way."""
    import torch

    sizes = gpu_kernels.SIZES
    source = torch.empty(sizes.copy_bytes, dtype=torch.uint8, device="cuda").fill_(1)
    target = torch.empty_like(source)
    copy_s = median_s(lambda: target.copy_(source))
    n = sizes.product
    a, b = (torch.randn(n, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    product_s = median_s(lambda: a @ b)
    host = torch.empty(sizes.host_bytes, dtype=torch.uint8, pin_memory=True)
    part = source[: sizes.host_bytes]
    return {
        "copy_gb_per_s": 2 * sizes.copy_bytes / copy_s / 1e9,
        "bf16_tflop_per_s": 2 * n**3 / product_s / 1e12,
        "to_host_gb_per_s": sizes.host_bytes / median_s(lambda: host.copy_(part, non_blocking=True)) / 1e9,
        "to_device_gb_per_s": sizes.host_bytes / median_s(lambda: part.copy_(host, non_blocking=True)) / 1e9,
    }


def build(shape: str, **options: Any) -> Any:
    from lullm import LLM

    sizes = gpu_kernels.SIZES
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(GPU_SHAPES[shape]))
        usual = {"max_model_len": sizes.max_model_len, "enable_prefix_caching": False, "swap_space": 0}
        return LLM(model=folder, tokenizer="demo", load_format="dummy", device="cuda", **{**usual, **options})


def decode(shape: str) -> Iterator[dict[str, float]]:
    """One stream, 32 tokens in and 256 out, with graphs and without. The prompt's step counts among the 256."""
    from lullm import SamplingParams

    sizes = gpu_kernels.SIZES
    for kind, eager in (("graphs", False), ("eager", True)):
        started = time.perf_counter()
        llm = build(shape, max_num_seqs=1, kv_cache_memory_bytes=sizes.kv_bytes, enforce_eager=eager)
        yield {f"{kind}_ready_s": time.perf_counter() - started}
        params = SamplingParams(temperature=0.0, max_tokens=sizes.output_len, ignore_eos=True)
        seconds = []
        for _ in range(4):
            started = time.perf_counter()
            llm.generate([list(range(10, 10 + sizes.prompt_len))], params, use_tqdm=False)
            seconds.append(time.perf_counter() - started)
        per_token = statistics.median(seconds[1:]) / sizes.output_len
        model = model_of(llm)
        num_bytes = sum(parameter.nbytes for parameter in model.parameters())
        if not GPU_SHAPES[shape]["tie_word_embeddings"]:  # of the embedding one row is read
            num_bytes -= model.model.embed_tokens.weight.nbytes
        yield {f"{kind}_tok_per_s": 1 / per_token, f"{kind}_gb_per_s": num_bytes / per_token / 1e9}
        llm.shutdown()


def mix_requests() -> list[tuple[list[int], int]]:
    """(token ids, tokens wanted) of nano-vLLM's mix."""
    sizes = gpu_kernels.SIZES
    rng, (least, most) = random.Random(0), sizes.mix_lens
    last_id = min(7900, GPU_SHAPES["0.6b"]["vocab_size"])
    return [
        ([rng.randrange(10, last_id) for _ in range(rng.randint(least, most))], rng.randint(least, most))
        for _ in range(sizes.num_requests)
    ]


def mix() -> dict[str, float]:
    from lullm import SamplingParams

    sizes = gpu_kernels.SIZES
    llm = build(
        "0.6b",
        max_num_seqs=sizes.num_requests,
        max_num_batched_tokens=sizes.max_num_batched_tokens,
    )
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
    from transformers import AutoConfig, AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

    sizes = gpu_kernels.SIZES
    shape = {key: value for key, value in GPU_SHAPES["0.6b"].items() if key not in ("architectures", "torch_dtype")}
    config = AutoConfig.for_model("qwen3", **shape)
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa").eval()
    requests = mix_requests()
    generation = GenerationConfig(do_sample=False, max_new_tokens=sizes.mix_lens[1], eos_token_id=-1, pad_token_id=0)
    manager = model.init_continuous_batching(
        generation_config=generation, continuous_batching_config=ContinuousBatchingConfig(**sizes.peer_options)
    )
    manager.warmup()  # records its graphs, as ours are by now
    manager.start()
    started = time.perf_counter()
    for number, (prompt, wanted) in enumerate(requests):
        manager.add_request(prompt, request_id=str(number), max_new_tokens=wanted)
    num_tokens = num_done = 0
    while num_done < len(requests) and time.perf_counter() - started < PEER_WINDOW_S:
        result = manager.get_result(timeout=1)
        if result is None:
            if not manager.is_running():
                raise SystemExit("transformers' generation thread ended")
        elif result.is_finished():
            if result.error is not None:
                manager.stop(block=True, hard_stop=True)
                raise SystemExit(f"transformers: {result.error}")
            num_done += 1
            num_tokens += len(result.generated_tokens)
    seconds = time.perf_counter() - started
    manager.stop(block=True, hard_stop=num_done < len(requests))
    return {
        "output_tok_per_s": num_tokens / seconds,
        "seconds": seconds,
        "output_tokens": num_tokens,
        "requests_done": num_done,
        "version": transformers.__version__,
    }


def sleep(shape: str) -> Iterator[dict[str, float]]:
    """Level 1 and back: first, again (nothing to copy), and after a change (pinned memory is there); then level 2."""
    import torch

    from lullm import SamplingParams

    sizes = gpu_kernels.SIZES
    options = {"kv_cache_memory_bytes": 4 * sizes.kv_bytes, "enable_sleep_mode": True, "verify_wake": False}
    yield {"available_before_gib": available_gib()}
    started = time.perf_counter()
    llm = build(shape, max_num_seqs=sizes.sleep_seqs, **options)
    yield {"ready_s": time.perf_counter() - started}
    params = SamplingParams(temperature=0.0, max_tokens=min(16, sizes.output_len), ignore_eos=True)
    prompt = [list(range(10, 10 + sizes.prompt_len))]

    def tokens() -> list[int]:
        return llm.generate(prompt, params, use_tqdm=False)[0].outputs[0].token_ids

    expected = tokens()
    captured = dict(captured_graphs_of(llm))
    held = torch.cuda.mem_get_info()[1] - torch.cuda.mem_get_info()[0]
    yield {"awake_gib": held / GIB}
    norm = model_of(llm).model.norm.weight.clone()
    for cycle, level in (("first", 1), ("unchanged", 1), ("level1", 1), ("level2", 2)):
        if cycle == "level1":
            llm.update_weights([("model.norm.weight", norm)])
        with timed_parts() as parts:
            report = llm.sleep(level=level)
        used = torch.cuda.mem_get_info()[1] - torch.cuda.mem_get_info()[0]
        sleeping = {f"{cycle}_sleep_{part}_s": seconds for part, seconds in parts.items()}
        started = time.perf_counter()
        with timed_parts() as parts:
            restored = llm.wake_up().restored_bytes
            torch.cuda.synchronize()
        wake_s = time.perf_counter() - started
        yield {
            f"{cycle}_sleep_s": report.seconds,
            f"{cycle}_wake_s": wake_s,
            f"{cycle}_released": 1 - used / held,
            f"{cycle}_sleep_gb_per_s": report.backed_up_bytes / report.seconds / 1e9,
            f"{cycle}_wake_gb_per_s": restored / wake_s / 1e9,
            f"{cycle}_available_gib": available_gib(),
            **sleeping,
            **{f"{cycle}_wake_{part}_s": seconds for part, seconds in parts.items()},
        }
        if tokens() != expected:
            raise SystemExit(f"other tokens after {cycle}")
    yield {"recaptured": float(captured_graphs_of(llm) != captured)}
    llm.shutdown()


def available_gib() -> float:
    """Of the host's memory, as the kernel says."""
    found = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(found["MemAvailable"].split()[0]) * 1024 / GIB


if __name__ == "__main__":
    main()
