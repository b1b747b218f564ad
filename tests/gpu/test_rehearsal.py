"""What only a GPU runs, at toy size on a fake one: the engine over `CudaDevice`, the benchmarks, the tile search."""

import json
import math

import pytest
import torch
from kit.folder.checkpoint import write_checkpoint

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the real thing is here; tests/gpu runs on it")


@pytest.fixture
def bench(toys):
    """bench/gpu.py over toys: work is done once."""
    return toys("gpu")


@pytest.mark.parametrize("name", ["ceilings", "kernels", "decode-0.6b", "mix", "sleep-8b"])
def test_every_case_gives_what_the_goals_ask_for(name, bench, toys, gpu):
    goals = toys("gpu_parts.report").GOALS
    figures = {}
    for part in bench.measure(name):
        figures |= json.loads(json.dumps(part))
    assert all(math.isfinite(value) for value in figures.values()), figures
    asked = {pair for goal in goals for pair in (goal.figure, goal.ceiling) if pair is not None}
    named = {"decode-8b": "decode-0.6b"}  # the same function
    assert {figure for case, figure in asked if named.get(case, case) == name} <= set(figures)
    if name == "sleep-8b":
        assert figures["recaptured"] == 0.0
        both = [(figures[f"{cycle}_wake_map_s"], figures[f"{cycle}_sleep_unmap_s"]) for cycle in ("first", "level2")]
        assert all(min(pair) > 0 for pair in both), "mapping is timed wherever it happens"


def test_every_goal_has_a_row_that_measures_it(script):
    bench, row, goals = script("gpu"), script("gpu_parts.row"), script("gpu_parts.report").GOALS
    wanted = {pair[0] for goal in goals for pair in (goal.figure, goal.ceiling) if pair is not None}
    assert wanted <= {*bench.CASES, "shipped tiles"}
    assert bench.CASES["sleep-8b"] < row.ROWS["sleep"].limit_s
    assert bench.CASES["mix-peer"] < row.ROWS["peer"].limit_s and bench.CASES["kernels"] < row.ROWS["figures"].limit_s


def test_a_tile_search(toys, gpu, monkeypatch):
    tiles, candidates = toys("gpu_tiles"), toys("gpu_parts.candidates")
    from lullm.ops.triton import tile

    monkeypatch.setattr(tiles, "STEPS", {"decode": ((1, 1, 40),), "prefill": ((1, 8, 24),)})
    monkeypatch.setattr(candidates, "DECODE_CANDIDATES", [tile.DecodeTile(32, 1, 1, min_split_keys=16)])
    for kind, cache_bytes, name in (("decode", 2, "DecodeTile"), ("prefill", 1, "PrefillTile")):
        found = tiles.search(kind, cache_bytes, 16, math.inf if kind == "decode" else -math.inf)
        assert found["line"].startswith(f'    ("sm90", {cache_bytes}, 16): {name}(')
        assert found["tried"] == (2 if kind == "decode" else 1), "the shipped one is timed even without time"
        assert eval(found["line"].split(": ", 1)[1].rstrip(","), vars(tile)) is not None


def test_an_engine_as_a_gpu_runs_it(tmp_path, gpu):
    """Its tokens, one copy each way per decode step, and nothing that waits but for the tokens."""
    from lullm import LLM, SamplingParams

    folder = str(write_checkpoint(tmp_path, "qwen3", num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1))
    params = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
    prompts = [[5, 6, 7], [9, 10, 11, 12]]
    options = {"dtype": "float32", "max_model_len": 64, "max_num_seqs": 2}
    with LLM(folder, device="cpu", **options) as llm:
        expected = [o.outputs[0].token_ids for o in llm.generate(prompts, params, use_tqdm=False)]
    with LLM(folder, device="cuda", num_gpu_blocks_override=12, swap_space=0, enable_sleep_mode=True, **options) as llm:
        for _ in range(2):
            gpu.copies.clear()
            gpu.num_waits = gpu.num_replays = 0
            found = [o.outputs[0].token_ids for o in llm.generate(prompts, params, use_tqdm=False)]
            assert found == expected
            assert [direction for direction, _, _ in gpu.copies] == ["to device", "to host"] * 6
            assert all(is_pinned for _, _, is_pinned in gpu.copies)
            assert gpu.num_replays == 5 and gpu.num_waits == 6
            llm.sleep(level=1)
            llm.wake_up()
    assert gpu.allocator.reserved < 1 << 20, "a closed engine keeps no graphs"


@pytest.mark.parametrize(
    "options", [pytest.param({"runner": "pooling"}, marks=pytest.mark.slow), {"convert": "embed"}], ids=str
)
def test_embeddings_as_a_gpu_computes_them(tmp_path, gpu, options):
    """The numbers of a step go in one copy, the vectors come in one. Memory is measured without a head, too."""
    from lullm import LLM

    folder = str(write_checkpoint(tmp_path, "qwen3", num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1))
    prompts = [[5, 6, 7], [9, 10, 11, 12, 13, 14, 15, 16, 17, 18], [3]]
    options |= {"dtype": "float32", "max_model_len": 64, "max_num_seqs": 2, "max_num_batched_tokens": 8}
    found = {}
    for device in ("cpu", "cuda"):
        with LLM(folder, device=device, kv_cache_memory_bytes=None if device == "cuda" else 1 << 20, **options) as llm:
            gpu.copies.clear()
            found[device] = [o.outputs.embedding for o in llm.embed(prompts, use_tqdm=False)]
            num_steps = llm.llm_engine.stats().steps_total
    torch.testing.assert_close(torch.tensor(found["cuda"]), torch.tensor(found["cpu"]), atol=1e-5, rtol=0)
    directions = [direction for direction, _, _ in gpu.copies]
    assert directions.count("to device") == num_steps and directions.count("to host") <= num_steps
    assert all(is_pinned for _, _, is_pinned in gpu.copies)
