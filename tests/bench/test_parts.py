"""The other benchmarks' own arithmetic, and that what they look at is still there."""

import importlib

import pytest
import torch

from lullm.config.model import ModelConfig
from lullm.models.registry import build_model


def test_the_parts_of_a_start_exist_and_are_clocked(script, monkeypatch):
    startup = script("startup")
    for calls in startup.PARTS.values():
        for module, *paths in calls:
            for path in paths:
                owner = importlib.import_module(module)
                for name in path.split("."):
                    owner = getattr(owner, name)
                assert callable(owner)
    spent = []
    monkeypatch.setattr("os.getloadavg", lambda: (1.0, 2.0, 3.0))
    startup.clock("os", "getloadavg", spent.append)
    assert importlib.import_module("os").getloadavg() == (1.0, 2.0, 3.0)
    assert len(spent) == 1 and spent[0] >= 0


def test_a_part_of_a_start_that_nothing_calls_is_named(script, monkeypatch):
    startup = script("startup")
    parts = {"read": (("a", "open_it"), ("a", "read_it")), "load": (("b", "load", "make_dummy"),)}
    monkeypatch.setattr(startup, "PARTS", parts)
    spent = {"open_it": [0.1], "read_it": [0.0, 0.2], "load": [], "make_dummy": [0.3]}
    assert startup.never_called(spent) == []
    assert startup.never_called(spent | {"read_it": [], "make_dummy": []}) == ["read_it", "load or make_dummy"]


@pytest.mark.parametrize("kind", ["paged", "contiguous"])
def test_too_few_requests_to_fill_a_pool_are_refused(script, kind):
    requests = script("null_model").sample_lengths("alpaca", 5)
    with pytest.raises(SystemExit, match="never filled the pool; give more"):
        if kind == "paged":
            script("null_model").saturate(requests, 16)
        else:
            script("contiguous").saturate(requests, "max", script("contiguous").FirstFitPlacement())


@pytest.mark.parametrize("in_memory", [True, False])
def test_bytes_are_written_and_read_once(script, tmp_path, in_memory):
    sleep = script("sleep")
    write_s, read_s = sleep.write_and_read_once(sleep.CHUNK + 5, None if in_memory else tmp_path)
    assert write_s > 0 and read_s > 0
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_bytes(b"x" * 10_000)
    assert sleep.read_once(tmp_path / "file", 10_000) > 0
    assert len(sleep.new_memory(5000)) == 8192


def test_a_sleep_table(script, capsys):
    sleep = script("sleep")
    args = type("Args", (), {"repeat": 1, "model": "m", "shape": None, "cold": None})
    one = {
        "level": 1, "target": "disk", "num_running": 2, "sleep_s": 0.2, "write_once_s": 0.1, "wake_s": 0.5,
        "read_once_s": 0.0, "freed_bytes": 2_000_000_000, "forecast_frees_bytes": 2_000_000_000,
        "backed_up_bytes": 250_000_000, "restored_bytes": 1_000_000_000, "resident_before": 3 << 20,
        "resident_asleep": 1 << 20, "resident_after": 2 << 20, "next_token_s": 0.6,
    }  # fmt: skip
    sleep.report(args, [2.0, 3.0], [one])
    out = capsys.readouterr().out
    assert (
        "| 1, disk | 2 | 250 | 0.200 | 10.0 | 0.100 | 2.00 | 3 -> 1 -> 2 | 0.500 | 2.0 | 0.000 | - | 0.600 | 1.000 |"
        in out
    )
    assert "cold start to first token: 2.50 s (2.00-3.00)" in out


@pytest.mark.parametrize("is_tiny", [False, True])
def test_every_familys_shape_is_a_model(script, is_tiny):
    """As `bench/models.py` writes it; some of its tiny ones were refused."""
    models = script("models")
    for name in models.FAMILIES:
        config = ModelConfig.from_dict(models.config_of(name, is_tiny))
        model = build_model(config, torch.bfloat16, 128)
        machine = {"read GB/s": 30.0, "products TFLOP/s": 5.0}
        assert models.least_s(models.decode_work(model, 10), machine) > 0, name
        prompt = models.prefill_work(model, 10)
        assert models.least_s(prompt, machine) <= 1.001 * sum(models.least_s([part], machine) for part in prompt), name
