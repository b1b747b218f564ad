"""Every script of `bench/`: a process of its own, the smallest arguments, figures and exit status 0."""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from kit.ready_process import CHILDREN_TOO, ready_run

from lullm.ops.cpu.library import load_library

ROOT = Path(__file__).parent.parent.parent
BENCH = ROOT / "bench"
FIGURE = r"\d+\.\d+"
# script: its arguments, and a line that holds its figures
RUNS = {
    "allocator": ("--num-blocks 20000 --repeat 1", rf"\| find, share .* \| {FIGURE} \|"),
    "beside": (
        "--streams 1 --steps 2 --rounds 1 --seconds 0.1",
        rf"(?s)counting on \d+ cores: {FIGURE} .* 1 streams: +{FIGURE} -> +{FIGURE} tok/s, {FIGURE}",
    ),
    "decode": ("--shape tiny --streams 1 --steps 1", rf"1 streams  recorded +{FIGURE} .* eager +{FIGURE} "),
    "encoders": (
        "--shape minilm-l6 --dtype float32 --texts 3 --longest 16 --repeat 1 --threads 1",
        rf"minilm-l6, float32: lullm {FIGURE} texts/s, transformers {FIGURE} texts/s, x{FIGURE}",
    ),
    "executor sums": ("--sizes 2048 --seconds 0.01", rf"\| 2048 \| {FIGURE} .* \| {FIGURE} .* \| {FIGURE} \|"),
    "executor steps": (
        "--streams 1 --steps 1 --input-len 8 --executor uni",
        rf"(?s)prefill, 8 tokens, ms \| {FIGURE} .*decode, 1 streams, ms \| {FIGURE} .* call and back, us \| {FIGURE} ",
    ),
    "fleet": (
        "--model demo --seconds 0.5 --clients 2 --tokens 2",
        rf"(?s)alternating +1 +\d+ +\d+ +{FIGURE}s .*mixed +1 +\d+ +\d+ +{FIGURE}s ",
    ),
    "guided": (
        "--shape tiny --num-prompts 2 --input-len 8 --output-len 4 --repeat 1",
        rf"plain {FIGURE} tokens/s, guided {FIGURE}, ratio {FIGURE} ",
    ),
    "gpu_occupancy": (
        "--kind decode --capability 90 --shipped",
        r"decode, bf16, D 128 \| 64, 2, 3 \| 90 \| \d+ \| \d+ \|",
    ),
    "gpu_host": ("", r"a layer, mixed \| \d+ \| \d+ \|"),
    "gpu_warm_up": ("--kind ahead", r'"ahead": ([89]|[12]\d), "behind": 0'),
    "gguf_file": (
        "--layers 1 --rounds 1 --threads 1 --vocab-size 2000",
        rf"lullm +prefill +\d+ tok/s +decode +{FIGURE} tok/s",
    ),
    "hibernation": (
        "--num-prompts 2 --input-len 8 --repeat 1",
        rf"(?s)2 requests of 8 tokens.*\| {FIGURE} \| {FIGURE} \| {FIGURE} \| {FIGURE} \| {FIGURE} \| {FIGURE} \|",
    ),
    "kernels": (
        '--repeat 1 --layers 1 --rows 1 --threads 1 --step "decode 1 x 128"',
        rf"(?s)1 rows +native +{FIGURE} .*int4 +{FIGURE} x{FIGURE}.*logits, 1 rows .*decode 1 x 128 .*int8 x{FIGURE}.*"
        rf"rope_and_cache, 1024 rows .* x{FIGURE}",
    ),
    "kv_dtype": (
        "--shape tiny --num-prompts 2 --input-len 8 --output-len 4",
        rf"(?s)greedy, fp8, scales: .* fp8, scales cache: error {FIGURE}, top-1 {FIGURE}%",
    ),
    "lora": (
        f"--model {ROOT / 'src' / 'lullm' / 'demo'} --adapters 2 --streams 2 --rounds 1 --input-len 4 --output-len 4",
        rf"2 adapters: +{FIGURE} -> +{FIGURE} tok/s, {FIGURE} of off",
    ),
    "load": ("--clients 6 --waves 1 --fits 4", r"(?s)wave 0: 6 ended, 0 failed, \d+ tok/s.*exit code 0"),
    "memory waste": (
        "--dataset sharegpt --num-requests 250 --block-size 16",
        rf"\| paged, block 16 .* \| {FIGURE}% \| {FIGURE}% \|",
    ),
    "memory sharing": (
        "--dataset alpaca --num-requests 400 --width 6 --theta 0.05",
        rf"(?s)parallel sampling, n \| {FIGURE}% .*beam search, width; .* \| {FIGURE}% \|",
    ),
    "models": (
        "--tiny --steps 1 --rounds 1 --input-len 16 --family Qwen3Moe",
        rf"\| Qwen3Moe \| {FIGURE} \| {FIGURE} \| \d+% \| {FIGURE} .* yes \|",
    ),
    "perplexity": (
        f"demo --text {ROOT / 'LICENSE'} --num-tokens 64 --window 32 --only bfloat16 int8",
        rf"(?s)62 tokens.*bfloat16 +{FIGURE} .* 100\.0%.*int8 +{FIGURE} +[-+]{FIGURE} ± {FIGURE} +{FIGURE}%",
    ),
    "preemption modes": ("--block-size 16 --repeat 1", rf"\| 16 \| {FIGURE} \| {FIGURE} \| {FIGURE} \|"),
    "preemption block-size": ("--block-size 16 --repeat 1", r"\| 16 \| \d+ \| \d+-\d+ \|"),
    "preemption prefix": ("--repeat 1", rf"\| 5 examples \| 341 \| {FIGURE} \| {FIGURE} \|"),
    "quantization": ("--shape tiny", rf"int4 all +{FIGURE} MiB +{FIGURE}%"),
    "swap_runs": ("--num-requests 500", rf"(?s)\| on \| \d+ \| {FIGURE} .*\| off \| \d+ \| {FIGURE} "),
    "scheduler": ("--num-seqs 4 --steps 1", rf"(?s)4 sequences: +{FIGURE} ms.*a result of 256 decodes: \d+ bytes"),
    "serving": (
        "--shape tiny --streams 2 --input-len 8 --output-len 4 --rounds 1",
        rf"(?s)offline +{FIGURE} tok/s.*thread +{FIGURE} tok/s.*thread +/ offline {FIGURE}",
    ),
    "narrow": (
        "--size 256",
        rf"512 rows: bfloat16 {FIGURE} ms; FP8, blocks {FIGURE} ms, x {FIGURE}; MXFP4 {FIGURE} ms",
    ),
    "sleep": ("--shape tiny --repeat 1 --num-prompts 2", rf"(?s)\| 2, disk \| 2 \| .*first token: {FIGURE} s"),
    "sleep_verify": (
        "--shape tiny --repeat 1 --num-prompts 1 --input-len 16 --targets ram",
        rf"\| ram \| \d+ \| wake \| {FIGURE} \|",
    ),
    "speculation": (
        "--streams 1 --rounds 1 --input-len 8 --output-len 8",
        rf"1 streams, fixed +: +{FIGURE} -> +{FIGURE} tok/s, x{FIGURE}; \d+ guessed, \d+% right, answers equal",
    ),
    "speculation --draft-layers 2": (
        "--streams 1 --rounds 1 --input-len 8 --output-len 8 --guesses 2",
        rf"1 streams, adaptive: +{FIGURE} -> +{FIGURE} tok/s, x{FIGURE}; \d+ guessed, \d+% right, answers equal",
    ),
    "startup": ("--runs 1", rf"(?s)\| pack the weights \| {FIGURE} .*\| start to first token \| {FIGURE} "),
    "startup --serve": ("--runs 1", rf"\| start to first token \| {FIGURE} \|"),
    "template": ("--rounds 3", rf"(?s)500 messages, here +{FIGURE} us.* 500 messages, other process +{FIGURE} us"),
    "throughput": ("--num-prompts 1 --input-len 4 --output-len 2 --repeat 1", rf"own +n=1 .* out +{FIGURE} tok/s"),
    "vision": (
        "--tower clip-l --layers 1 --repeat 1 --threads 1",
        rf"clip-l, 576 patches, 1 layers: lullm {FIGURE} s, transformers {FIGURE} s, x{FIGURE}",
    ),
}
SLOW = dict.fromkeys(("gpu_warm_up", "startup --serve", "preemption prefix"), pytest.mark.slow)
"""The first compiles twenty kernels; `gpu_host` compiles some, tests/gpu/test_warm_up.py counts what is compiled ahead.
The others are other ways through scripts that are run."""
ALONE = {"memory picture", "checkpoint", "cpu", "roofline", "peer/fields"}
"""Those with a test of their own below."""
FOR_A_GPU = {"gpu", "gpu_tiles", "gpu_check"}
PARTS = {"bar_chart", "ceilings", "contiguous", "engine_part", "gpu_kernels", "null_model", "peer/protocol", "shape"}
"""Modules of other scripts."""
PEERS = {"peer/run_llamacpp", "peer/run_lullm", "peer/run_openvino", "peer/run_vllm"}
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted(BENCH.glob("*.py"))]


@pytest.fixture(scope="module")
def run():
    """`run(script, *arguments)`: what became of it; `script`: 'NAME [ARGUMENT ...]'."""
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")} | CHILDREN_TOO

    def start(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        name, *first = script.split()
        return ready_run([sys.executable, BENCH / f"{name}.py", *first, *arguments], env=environment)

    return start


@pytest.fixture(scope="module")
def output_of(run):
    """What a run prints; it must end well."""

    def start(script: str, *arguments: str) -> str:
        done = run(script, *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return start


@pytest.mark.parametrize("script", [pytest.param(name, marks=SLOW.get(name, ())) for name in RUNS])
def test_a_script_prints_its_figures(output_of, script):
    if script in ("kernels", "executor sums") and load_library() is None:
        pytest.skip("no native ops were built")
    words, figures = RUNS[script]
    arguments = [quoted or plain for quoted, plain in re.findall(r'"([^"]*)"|(\S+)', words)]
    out = output_of(script, *arguments)
    assert re.search(figures, out), out


def test_a_picture_of_the_pool(output_of, tmp_path):
    out = output_of("memory picture", "--num-requests", "250", "--png", str(tmp_path / "a.png"))
    assert "wrote" in out and (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_a_roofline(output_of, tmp_path):
    """Three layers of 15.7 million weights each: 0.094 GB, at half of the speed of reading."""
    ceilings = {"read GB/s": 10.0, "products TFLOP/s": 1.0}
    report = {"isa": "amx", "layers": 3, "ceilings": ceilings, "linear": {"pack_s": 1.0, "1": {"native": 0.0189}}}
    report["attention"] = {"decode 1 x 4096": {"native": 0.001}, "prefill 1 x 1024": {"native": 0.01}}
    (tmp_path / "kernels.json").write_text(json.dumps(report))
    out = output_of("roofline", str(tmp_path / "kernels.json"), str(tmp_path / "roofline.png"))
    shares = dict(re.findall(r"^(.+?) +[\d.]+ per byte +[\d.]+ TFLOP/s +(\d+)%$", out, re.MULTILINE))
    # Keys and values of 4,096 tokens are 16.8 MB, 1.7 ms; half a million pairs of a prompt take 4.3 GFLOP, 4.3 ms.
    assert shares == {"linear 1 rows": "50", "decode 1 x 4096": "168", "prefill 1 x 1024": "43"}, out
    assert (tmp_path / "roofline.png").read_bytes().startswith(b"\x89PNG")


def test_a_checkpoint_that_the_comparison_takes(output_of):
    """As docs/performance.md does it, with lullm alone."""
    with tempfile.TemporaryDirectory() as folder:
        out = output_of("checkpoint", "tiny", f"{folder}/model")
        assert re.search(rf"{re.escape(folder)}/model: \d+ million parameters", out)
        arguments = ("--model", f"{folder}/model", "--json", f"{folder}/cpu.json", "--rounds", "1", "--case", "decode1")
        out = output_of("cpu", *arguments)
        assert re.search(r"\| decode, 1 stream \(32 in, 64 out\), tok/s \| [\d.e+]+ \|", out), out


@pytest.mark.skipif(torch.cuda.is_available(), reason="here they would measure; `make gpu-check` runs them")
@pytest.mark.parametrize("script", sorted(FOR_A_GPU))
def test_a_script_for_a_gpu_refuses_without_one(run, script):
    done = run(script)
    assert done.returncode == 2 and re.search("torch (sees no GPU here|.* without CUDA); nothing was", done.stderr), (
        done.stdout + done.stderr
    )
    assert done.stdout == ""


@pytest.mark.parametrize("script", sorted(PEERS))
def test_a_runner_of_an_engine_says_its_options(output_of, script):
    """Without the engine installed."""
    assert "--case NAME:NUM:IN:OUT" in output_of(script, "--help")


def test_the_slow_script_says_its_options(output_of):
    assert "--kind {serial,ahead}" in output_of("gpu_warm_up", "--help")


def test_the_comparison_of_two_servers_says_its_options(output_of):
    assert "URL of a server" in output_of("peer/fields", "--help")


def test_every_file_is_run_here():
    files = {str(path.relative_to(BENCH).with_suffix("")) for path in BENCH.rglob("*.py")}
    files -= {file for file in files if file.startswith("gpu_parts/")}  # tests/gpu/test_rehearsal_rows.py runs those
    assert files == {script.split()[0] for script in RUNS.keys() | ALONE} | FOR_A_GPU | PARTS | PEERS


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_documented_commands_name_options_that_exist(document):
    text = document.read_text().replace("\\\n", " ").replace("\\ ", " ")
    for name, words in re.findall(r"python3? bench/(\w+)\.py([^`#\n]*)", text):
        source = (BENCH / f"{name}.py").read_text()
        if "add_model_flags(" in source:
            source += (BENCH / "shape.py").read_text()
        for option in re.findall(r"--[a-z][a-z-]*", words):
            assert f'"{option}"' in source, f"bench/{name}.py has no {option}"
