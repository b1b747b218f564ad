"""`lullm bench latency`, `throughput` and `startup` with a tiny random model."""

import json
import math
import os
import shutil
import sys
from types import SimpleNamespace

import pytest
from kit.ready_process import ready_run

from lullm.cli.bench import startup
from lullm.cli.main import main

LENGTHS = ("--input-len", "9", "--output-len", "5")
ENGINE = ("--dtype", "float32", "--num-gpu-blocks-override", "60", "--load-format", "dummy")


@pytest.fixture(scope="module")
def config_folder(qwen3_folder, tmp_path_factory):
    """A checkpoint without weights: dummy ones are filled in."""
    folder = tmp_path_factory.mktemp("shape")
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(qwen3_folder / name, folder)
    return str(folder)


def record(path):
    found = json.loads(path.read_text())
    assert found["machine"]["cores"] >= 1 and found["options"]["load_format"] == "dummy"
    return found


def test_latency(config_folder, tmp_path, capsys):
    files = "--output-json", str(tmp_path / "run.json"), "--png", str(tmp_path / "run.png")
    flags = "--batch-size", "3", "--n", "2", "--num-iters", "4", "--num-iters-warmup", "1"
    assert main(["bench", "latency", config_folder, *ENGINE, *LENGTHS, *flags, *files]) == 0
    found = record(tmp_path / "run.json")
    assert len(found["latencies"]) == 4 and found["options"]["model"] == config_folder
    assert found["avg_latency"] == pytest.approx(sum(found["latencies"]) / 4)
    assert found["percentiles"]["10"] <= found["percentiles"]["99"] <= max(found["latencies"])
    assert 0 < found["time_to_first_token"]["mean"] < found["avg_latency"]
    assert found["output_tokens_per_second"] == pytest.approx(3 * 2 * 5 / found["avg_latency"])
    assert "3 prompts of 9 tokens" in capsys.readouterr().out
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")


def test_a_latency_of_fewer_tokens_than_it_says_is_refused(config_folder, capsys):
    """It counted those that the model's length had cut off."""
    flags = "--input-len", "9", "--output-len", "50", "--max-model-len", "32", "--num-iters-warmup", "0"
    assert main(["bench", "latency", config_folder, *ENGINE, *flags]) == 2
    assert "only 23 of --output-len 50 tokens fit behind --input-len 9" in capsys.readouterr().err


def test_latency_of_a_search(config_folder, capsys):
    flags = "--use-beam-search", "--n", "2", "--num-iters", "1", "--num-iters-warmup", "0", "--batch-size", "1"
    assert main(["bench", "latency", config_folder, *ENGINE, *LENGTHS, *flags]) == 0
    assert "99% latency" in capsys.readouterr().out


def test_equal_batches_are_computed_anew(config_folder, monkeypatch):
    """Unless the prefix cache is asked for: it would leave out most of the second prefill."""
    from lullm import LLM

    hits = []
    shutdown = LLM.shutdown
    monkeypatch.setattr(
        LLM, "shutdown", lambda llm: (hits.append(llm.llm_engine.stats().prefix_cache_hits_total), shutdown(llm))
    )
    argv = ["bench", "latency", config_folder, *ENGINE, "--input-len", "40", "--output-len", "2", "--num-iters", "2"]
    assert main(argv) == 0 and main([*argv, "--enable-prefix-caching"]) == 0
    assert hits[0] == 0 < hits[1]


def test_throughput(config_folder, tmp_path, capsys):
    flags = "--num-prompts", "6", "--json", str(tmp_path / "run.json")
    assert main(["bench", "throughput", config_folder, *ENGINE, *LENGTHS, *flags]) == 0
    found = record(tmp_path / "run.json")
    assert (found["num_requests"], found["prompt_tokens"], found["output_tokens"]) == (6, 54, 30)
    assert found["tokens_per_second"] == pytest.approx(84 / found["elapsed_time"])
    assert "6 requests in" in capsys.readouterr().out


def test_throughput_of_a_file(config_folder, tmp_path, monkeypatch, capsys):
    """The settings of the environment hold below `bench`, too."""
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "hello"}\n{"prompt": "the quick brown fox"}\n')
    monkeypatch.setenv("LULLM_NUM_PROMPTS", "3")
    flags = "--dataset-name", "custom", "--dataset-path", str(tmp_path / "prompts.jsonl"), "--output-len", "2"
    assert main(["bench", "throughput", config_folder, *ENGINE, *flags]) == 0
    assert "3 requests in" in capsys.readouterr().out


def test_startup(config_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    flags = "--num-iters-warm", "1", "--num-iters-cold", "1", "--json", str(tmp_path / "run.json")
    assert main(["bench", "startup", config_folder, *ENGINE, *flags]) == 0
    runs = record(tmp_path / "run.json")["runs"]
    out = capsys.readouterr().out
    for kind in ("cold", "warm"):
        [run] = runs[kind]
        *parts, ready, first = run["seconds"].values()
        assert math.isclose(sum(parts), first, rel_tol=1e-6) and 0 < ready < first < 60
        assert run["peak_bytes"] > 1 << 26 and f"1 {kind} starts" in out


def test_a_start_that_fails(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    monkeypatch.setattr(startup, "subprocess", SimpleNamespace(run=lambda command, **_: ready_run(command)))
    (tmp_path / "config.json").write_text("{}")
    assert main(["bench", "startup", str(tmp_path), "--num-iters-warm", "1"]) == 2
    assert "the process that was started failed: " in capsys.readouterr().err
