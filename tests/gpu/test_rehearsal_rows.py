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


def test_contact(toys, gpu, lines, outcome, monkeypatch):
    contact = toys("gpu_parts.contact")
    monkeypatch.setattr(contact.atexit, "register", lambda clear: clear())
    contact.run(lines)
    figures = outcome()
    assert figures["map by 2 MiB"]["map_ms"] > 0 and figures["pin 2 MiB"]["populate_gb_per_s"] > 0
    assert figures["bus"]["kernel_to_host_gb_per_s"] > 0


def test_kernels(toys, gpu, lines, outcome):
    correctness = toys("gpu_parts.correctness")
    checks = [check for group in correctness.all_checks() for check in group]
    correctness.run_group(lines, checks, SimpleNamespace(value=0))
    figures, (decode, draw, row) = outcome(), checks
    assert figures[decode[0]]["decode_parts"] > 1 and figures[row[0]]["error"] < 1e-5 and draw[0] in figures


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


def test_engine(toys, gpu, lines, outcome, monkeypatch):
    """The quickest of its cases; the others are slow on the interpreter."""
    engine = toys("gpu_parts.engine")
    monkeypatch.setattr(engine, "CASES", {name: engine.CASES[name] for name in ("no hidden wait",)})
    engine.run(lines)
    assert outcome()["no hidden wait"]["steps"] == 3
    assert gpu.sync_debug_mode == "default"


def test_a_hidden_wait_fails_its_case(toys, gpu, monkeypatch):
    """A sampler that looks at its tokens: the host waits for every step."""
    from lullm.errors import EngineDeadError
    from lullm.step.runner import ModelRunner

    engine, draw = toys("gpu_parts.engine"), ModelRunner._draw_decodes

    def looking(runner, *args):
        sampled = draw(runner, *args)
        assert sampled.tokens[0].item() >= 0
        return sampled

    monkeypatch.setattr(ModelRunner, "_draw_decodes", looking)
    with pytest.raises(EngineDeadError, match="synchronizing CUDA operation"):
        engine.no_hidden_wait()


@pytest.mark.slow
def test_engine_in_all_cases(toys, gpu, lines, outcome):
    toys("gpu_parts.engine").run(lines)
    figures = outcome()
    assert figures["swap"]["preemptions"] > 0 and figures["prefix hits"]["found"] > 0


def test_profile(toys, gpu, lines, outcome):
    toys("gpu_parts.profile").run(lines)
    figures = outcome()
    assert figures["decode, 2 rows"]["host_prepare_us"] > 0 and figures["mixed, 12 tokens"]["warm_host_launch_us"] > 0


def test_host(toys, gpu, lines, outcome):
    toys("gpu_parts.host").run(lines)
    figures = outcome()
    assert figures["launches"]["own_norm_us"] > 0 and figures["mixed step"]["warm_step_ms"] > 0
    assert figures["eager decode, 1 rows"]["us_by_function"]


def test_summary_of_a_profile(script):
    """Two kernels beside each other, a gap of 3, one of 1."""
    events = [("a", 0.0, 4.0), ("b", 2.0, 5.0), ("a", 8.0, 10.0), ("c", 11.0, 12.0)]
    assert script("gpu_parts.profile").summary(events, 2) == {
        "device_events": 2.0, "busy_share": 8 / 12, "busy_us": 4.0, "median_gap_us": 2.0,
        "us_by_kernel": {"a": 3.0, "b": 1.5, "c": 0.5},
    }  # fmt: skip


def test_products(toys, gpu, lines, outcome):
    toys("gpu_parts.products").run(lines)
    figures = outcome()
    assert figures["head of 8b"]["2_rows_gb_per_s"] > 0 and figures["ceilings"]["bf16_tflop_per_s"] > 0


def test_tiles(toys, gpu, lines, outcome):
    """The interpreter computes wrongly in bfloat16, but alike with every tile."""
    toys("gpu_tiles").run(lines)
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


def test_swap(toys, gpu, lines, outcome):
    toys("gpu_parts.swap").run(lines)
    assert outcome()["out by 8 programs"]["beside_gb_per_s"] > 0


def test_sanitized(toys, gpu, lines, outcome):
    toys("gpu_parts.rest.sanitized").run(lines)
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
