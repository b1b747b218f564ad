"""The comparison with other engines, with engines that only count: real processes, no model."""

import argparse
import json
import shutil
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parent.parent.parent / "bench"
RUNNER = """
import sys
from protocol import parse_arguments, run
args = parse_arguments("")
print("words of its own")
run(args, lambda prompts, output_len: {tokens}, "1.2", note=str(args.option))
"""


@pytest.fixture
def cpu(script):
    return script("cpu")


@pytest.fixture
def bench(cpu, monkeypatch, tmp_path):
    """`bench(*arguments)`: runs `main` with lullm and two peers, whose engines are counters; returns the results."""
    peer = tmp_path / "peer"
    peer.mkdir()
    shutil.copy(BENCH / "peer/protocol.py", peer)
    for name in ("lullm", "openvino", "llamacpp"):
        (peer / f"run_{name}.py").write_text(RUNNER.format(tokens="len(prompts) * output_len"))
    monkeypatch.setattr(cpu, "PEER", peer)
    (tmp_path / "model").mkdir()
    (tmp_path / "model/weights").write_bytes(b"1")

    def run(*arguments):
        model = ("--model", str(tmp_path / "model"), "--json", str(tmp_path / "results.json"))
        peers = ("--openvino", sys.executable, "--openvino-model", str(tmp_path / "model"),
                 "--llamacpp", sys.executable, "--gguf", str(tmp_path / "model"))  # fmt: skip
        monkeypatch.setattr(sys, "argv", ["cpu.py", *model, *peers, *arguments])
        cpu.main()
        return json.loads((tmp_path / "results.json").read_text())["runs"]

    run.peer = peer
    return run


def test_engines_take_turns_and_nothing_is_run_twice(bench, capsys):
    runs = bench("--rounds", "1", "--case", "decode1", "--case", "batch8", "--variant", 'int8:quantization="int8"')
    assert [(r["engine"], r["round"], list(r["cases"])) for r in runs] == [
        ("lullm", 0, ["decode1", "batch8"]),
        ("lullm int8", 0, ["decode1", "batch8"]),
        ("openvino", 0, ["decode1", "batch8"]),
        ("llamacpp", 0, ["decode1"]),  # one stream only
    ]
    assert runs[1]["note"] == "{'quantization': 'int8'}" and runs[0]["version"] == "1.2"
    assert all(0 < r["ready_s"] <= r["first_token_s"] <= r["seconds_in_all"] for r in runs)
    again = bench("--rounds", "2", "--case", "decode1", "--cases-per-process", "1")
    assert again[: len(runs)] == runs
    assert [(r["engine"], r["round"]) for r in again[len(runs) :]] == [
        ("lullm", 1), ("openvino", 1), ("llamacpp", 1)
    ]  # fmt: skip
    out = capsys.readouterr().out
    assert "| decode, 1 stream (32 in, 64 out), tok/s |" in out and "prefill" not in out


def test_medians_and_ratios(cpu, capsys):
    def one(engine, number, seconds, ready_s):
        return {"engine": engine, "round": number, "cases": {"prefill1": [seconds]}, "ready_s": ready_s,
                "first_token_s": ready_s + 1, "version": "1"}  # fmt: skip

    runs = [one("lullm", i, s, 2.0) for i, s in enumerate((1.0, 2.0, 4.0))]
    cpu.report([*runs, one("vllm", 0, 4.0, 60.0)])
    lines = capsys.readouterr().out.splitlines()
    assert "| start to ready, s | 2 (2-2) | 60 | 30.00 |" in lines
    assert "| prefill 1 x 1024, tok/s | 512 (256-1.02e+03) | 256 | 2.00 |" in lines


def test_an_engine_that_counts_wrong_or_dies_ends_the_comparison(bench):
    (bench.peer / "run_lullm.py").write_text(RUNNER.format(tokens="0"))
    with pytest.raises(SystemExit, match=r"(?s)lullm failed .*decode1: 0 tokens came, not 64") as caught:
        bench("--rounds", "1", "--case", "decode1")
    assert "(1)" in str(caught.value)


def test_a_peer_needs_its_model(cpu):
    args = argparse.Namespace(
        model="m",
        threads=1,
        variant=[],
        vllm=None,
        openvino="p",
        openvino_model=None,
        llamacpp=None,
        gguf=None,
        engine=None,
    )
    with pytest.raises(SystemExit, match="--openvino needs its model"):
        cpu.engines(args)


def test_a_picture(bench, tmp_path):
    bench("--rounds", "1", "--case", "decode1", "--plot", str(tmp_path / "cpu.png"))
    assert (tmp_path / "cpu.png").read_bytes().startswith(b"\x89PNG")


def test_decode_behind_a_context_is_what_the_longer_case_took_more_in_its_round(cpu, capsys):
    def one(number, **cases):
        seconds = {name: [value] for name, value in cases.items()}
        times = {"ready_s": 1.0, "first_token_s": 1.0}
        return {"engine": "lullm", "round": number, "cases": seconds, **times, "version": "1"}

    cpu.report([one(0, prefill32k=20.0), one(0, long32k=28.0), one(1, prefill32k=21.0), one(1, prefill16k=9.0)])
    out = capsys.readouterr().out
    assert "| decode behind 32768 tokens, tok/s | 8 |" in out and "behind 16384" not in out
