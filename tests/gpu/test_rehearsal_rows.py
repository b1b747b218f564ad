"""Every row of `gpu-check` at toy size on a fake GPU: each runs to its end, and says all that it has planned."""

import dataclasses
import os
import signal
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the real thing is here; gpu-check runs on it")

MIB = 1 << 20
SHAPE = {"vocab_size": 320, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1,
         "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "max_position_embeddings": 128,
         "torch_dtype": "float32"}  # fmt: skip


@pytest.fixture
def lines(script, tmp_path):
    line = script("gpu_parts.line")
    return line.Lines(tmp_path / "gpu-check.jsonl", "row")


@pytest.fixture
def outcome(script, lines):
    """What the summary says of the lines, as if the row had ended by itself."""

    def found():
        read, report = script("gpu_parts.line").read_lines(lines.path), script("gpu_parts.report")
        own = [{"state": "begun", "commit": "c"}, *read, {"state": "ended", "code": 0, "seconds": 1.0}]
        outcome = report.outcome_of("row", own)
        assert outcome.failed == {} and outcome.missed == [] and outcome.passed
        assert outcome.state == "passed"
        return report.figures_of(read)

    return found


def test_facts(script, gpu, lines, outcome):
    script("gpu_parts.facts").run(lines)
    figures = outcome()
    assert figures["gpu"]["name"] == "a fake" and figures["driver"]["granularity"] == 2 * MIB
    assert figures["host"]["cores"] >= 1 and "MemAvailable" in figures["memory"] and "git" in figures["tools"]


def test_contact(script, gpu, lines, outcome, monkeypatch):
    contact = script("gpu_parts.contact")
    toy = {"arena_bytes": 4 * MIB, "chunk_bytes": (2 * MIB,), "mapped_bytes": 8 * MIB, "pinned_bytes": (2 * MIB,)}
    monkeypatch.setattr(contact, "SIZES", dataclasses.replace(contact.SIZES, **toy, block_dims=(16, 8, 512)))
    monkeypatch.setattr(contact.atexit, "register", lambda clear: clear())
    contact.run(lines)
    figures = outcome()
    assert figures["map by 2 MiB"]["map_ms"] > 0 and figures["pin 2 MiB"]["populate_gb_per_s"] > 0
    assert figures["bus"]["kernel_to_host_gb_per_s"] > 0


class HostGenerator(torch.Generator):
    """Of numbers for any device."""

    def __new__(cls, device=None):
        return super().__new__(cls)


@pytest.fixture
def on_fake(gpu, monkeypatch):
    """What the fake has not: random numbers of its own, a device that sleeps, errors for waits."""
    monkeypatch.setattr(torch, "Generator", HostGenerator)
    gpu.modes = []
    monkeypatch.setattr("torch.cuda._sleep", lambda cycles: None)
    monkeypatch.setattr("torch.cuda.set_sync_debug_mode", gpu.modes.append)
    return gpu


def test_kernels(script, on_fake, lines, outcome):
    """Of each kind one: the interpreter has them all in tests/ops/triton."""
    correctness = script("gpu_parts.correctness")
    groups = correctness.all_checks(is_small=True)
    decode, draw, row = groups[0][1], groups[1][1], groups[2][0]
    correctness.run_group(lines, [decode, draw, row], SimpleNamespace(value=0))
    figures = outcome()
    assert figures[decode[0]]["decode_parts"] > 1 and figures[row[0]]["error"] < 1e-5


def test_a_fault_of_one_case_leaves_the_others(script, lines, monkeypatch):
    """Groups in processes of their own: one fails, one breaks its device, one is ended by a signal; all others run."""
    correctness = script("gpu_parts.correctness")

    def broken(device):
        monkeypatch.setattr(torch.cuda, "synchronize", fail)
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    def fail():
        raise RuntimeError("CUDA error: the same")

    def wrong(device):
        raise AssertionError("error 3.0e-01, bound 8e-03")

    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    groups = [
        [("a", lambda device: {"error": 0.0}), ("b", wrong), ("c", lambda device: {})],
        [("d", broken), ("e", lambda device: {})],
        [("f", lambda device: os.kill(os.getpid(), signal.SIGKILL)), ("g", lambda device: {})],
    ]
    monkeypatch.setattr(correctness, "all_checks", lambda: groups)
    correctness.run(lines, num_processes=2)
    found = {line["what"]: line for line in script("gpu_parts.line").read_lines(lines.path) if "what" in line}
    assert {what: line["state"] for what, line in found.items()} == {
        "a": "passed", "b": "failed", "c": "passed", "d": "failed", "e": "passed", "f": "failed", "g": "passed",
    }  # fmt: skip
    assert found["b"]["error"] == "AssertionError: error 3.0e-01, bound 8e-03" and "signal 9" in found["f"]["error"]


@pytest.fixture
def engines(script, on_fake, monkeypatch):
    """Engines of one layer in float32."""
    kernels = script("gpu_kernels")
    toys = {name: {**shape, **SHAPE} for name, shape in kernels.GPU_SHAPES.items()}
    monkeypatch.setattr(kernels, "SIZES", dataclasses.replace(kernels.SIZES, max_model_len=64))
    monkeypatch.setattr(script("gpu"), "GPU_SHAPES", toys)
    return on_fake


def run_engines(script, lines, monkeypatch):
    engine = script("gpu_parts.engine")
    options = {"max_num_seqs": 4, "max_num_batched_tokens": 32, "num_gpu_blocks_override": 40}
    few = engine.FEW_BLOCKS | {"num_gpu_blocks_override": 6, "max_model_len": 64}
    toys = {"OPTIONS": options, "FEW_BLOCKS": few, "CHUNK": 8, "NUM_TOKENS": 5, "PROMPT_LENS": (15, 3, 30, 16)}
    for name, value in toys.items():
        monkeypatch.setattr(engine, name, value)
    engine.run(lines)


def test_engine(script, engines, lines, outcome, monkeypatch):
    """The quickest of its cases; the others are slow on the interpreter."""
    engine = script("gpu_parts.engine")
    monkeypatch.setattr(engine, "CASES", {name: engine.CASES[name] for name in ("no hidden wait",)})
    run_engines(script, lines, monkeypatch)
    assert outcome()["no hidden wait"]["steps"] == 3
    assert engines.modes == ["error", "default"]


@pytest.mark.slow
def test_engine_in_all_cases(script, engines, lines, outcome, monkeypatch):
    run_engines(script, lines, monkeypatch)
    figures = outcome()
    assert figures["swap"]["preemptions"] > 0 and figures["prefix hits"]["found"] > 0


def test_profile(script, engines, lines, outcome, monkeypatch):
    profile = script("gpu_parts.profile")
    for name, value in {"ROWS": (1, 2), "NUM_STEPS": 2, "CONTEXT_LEN": 5, "MIXED_TOKENS": 24}.items():
        monkeypatch.setattr(profile, name, value)
    monkeypatch.setattr(profile, "build", lambda *args, **options: script("gpu").build(
        *args, **options, num_gpu_blocks_override=20))  # fmt: skip
    monkeypatch.setattr(torch.profiler, "supported_activities", lambda: set())
    profile.run(lines)
    figures = outcome()
    assert figures["decode, 2 rows"]["host_prepare_us"] > 0 and figures["mixed, 24 tokens"]["warm_host_launch_us"] > 0


def test_summary_of_a_profile(script):
    """Two kernels beside each other, a gap of 3, one of 1."""
    events = [("a", 0.0, 4.0), ("b", 2.0, 5.0), ("a", 8.0, 10.0), ("c", 11.0, 12.0)]
    assert script("gpu_parts.profile").summary(events, 2) == {
        "device_events": 2.0, "busy_share": 8 / 12, "busy_us": 4.0, "median_gap_us": 2.0,
        "us_by_kernel": {"a": 3.0, "b": 1.5, "c": 0.5},
    }  # fmt: skip


def test_products(script, engines, lines, outcome, monkeypatch):
    kernels, products = script("gpu_kernels"), script("gpu_parts.products")
    small = {"copy_bytes": 4096, "host_bytes": 1024, "product": 8}
    monkeypatch.setattr(kernels, "SIZES", dataclasses.replace(kernels.SIZES, **small))
    monkeypatch.setattr(kernels, "REPEAT", 1)
    monkeypatch.setattr(products, "GPU_SHAPES", script("gpu").GPU_SHAPES)
    monkeypatch.setattr(products, "ROWS", (1, 2))
    products.run(lines)
    figures = outcome()
    assert figures["head of 8b"]["2_rows_gb_per_s"] > 0 and figures["ceilings"]["bf16_tflop_per_s"] > 0


def test_tiles(script, gpu, lines, outcome, monkeypatch):
    """The interpreter computes wrongly in bfloat16, but alike with every tile."""
    tiles, kernels = script("gpu_tiles"), script("gpu_kernels")
    monkeypatch.setattr(kernels, "REPEAT", 1)
    monkeypatch.setattr(kernels, "GPU_SHAPES", {name: {**s, **SHAPE} for name, s in kernels.GPU_SHAPES.items()})
    monkeypatch.setattr(tiles, "STEPS", {"decode": ((1, 1, 20),), "prefill": ((1, 2, 20),)})
    monkeypatch.setattr(tiles, "FIRST", {"decode": ((32, 1, 1, 16),), "prefill": ((32, 16, 1, 1),)})
    tiles.run(lines)
    figures = outcome()
    assert figures["shipped tiles"]["decode_gb_per_s"] > 0 and figures["shipped tiles"]["prefill_tflop_per_s"] > 0
    assert figures["decode tile (32, 1, 1, 16)"]["decode_gb_per_s"] > 0


def test_a_tile_that_computes_something_else_is_refused(script, gpu):
    tiles = script("gpu_tiles")
    step = tiles.Step(lambda tile: torch.ones(4) * tile[0], torch.ones(4))
    tiles.check(step, SimpleTile(1.0))
    with pytest.raises(ArithmeticError, match="away from"):
        tiles.check(step, SimpleTile(1.02))


@dataclasses.dataclass
class SimpleTile:
    factor: float

    def __getitem__(self, place):
        return self.factor


def test_swap(script, gpu, lines, outcome, monkeypatch):
    swap = script("gpu_parts.swap")
    for name, value in {"NUM_LAYERS": 1, "NUM_BLOCKS": 2, "PRODUCT": 8, "ROUNDS": 1}.items():
        monkeypatch.setattr(swap, name, value)
    swap.run(lines)
    assert outcome()["out by 8 programs"]["beside_gb_per_s"] > 0


def test_sanitized(script, on_fake, lines, outcome, monkeypatch):
    sanitized = script("gpu_parts.rest.sanitized")
    monkeypatch.setattr(sanitized, "CASES", [sanitized.CASES[2].small()])
    monkeypatch.setattr(sanitized, "row_cases", lambda device: script("gpu_parts.case.rows").row_cases(device, 32))
    monkeypatch.setattr(sanitized, "DRAW", script("gpu_parts.case.draw").DrawCase("flat", 600, 1))
    sanitized.run(lines)
    outcome()


def test_every_row_has_something_to_run(script):
    """What the table names exists."""
    row = script("gpu_parts.row")
    for name, what in row.ROWS.items():
        if what.run:
            module, function = what.run.split(":")
            assert callable(getattr(script(module), function)), name
        for path in what.tests:
            assert (row.ROOT / path).exists(), name
    assert sum(what.limit_s for what in row.FIRST) <= 560
