"""`lullm plan`: its bytes are those of real engines, and its speeds follow from them."""

import json
import shutil
import time

import pytest
import torch

from lullm import LLM
from lullm.cli.main import main
from lullm.cli.plan import measure
from lullm.cli.plan.model import read_model
from lullm.cli.plan.roofline import PROCESS_BYTES, Machine, Plan, advice, plan
from lullm.errors import CacheSizeError
from lullm.units import GIB
from lullm.weights.folder import DEMO_FOLDER

MACHINE = Machine(4 * GIB, 20e9, 1e12)


@pytest.mark.parametrize("quantization", [None, "int8", "int4"])
@pytest.mark.parametrize("kv_cache_dtype", ["auto", "int8"])
def test_the_bytes_are_an_engines(quantization, kv_cache_dtype):
    found = plan(read_model("demo"), MACHINE, 256, 4, kv_cache_dtype, quantization)
    options = {"max_model_len": 256, "num_gpu_blocks_override": 64, "kv_cache_dtype": kv_cache_dtype}
    with LLM("demo", quantization=quantization, **options) as llm:
        worker = llm.llm_engine.model_executor.driver_worker
        assert found.weights_bytes == pytest.approx(worker.loaded.arena.used_bytes, rel=0.02)
        kv_bytes = sum(tensor.nbytes for cache in worker.pools.device for tensor in (cache.key, cache.value))
        assert found.kv_bytes_per_token == pytest.approx(kv_bytes / (64 * 16), rel=0.02)
    left = MACHINE.memory_bytes - PROCESS_BYTES - found.weights_bytes
    assert found.num_sequences == left // (found.kv_bytes_per_token * 256)


def test_speeds_follow_from_the_machine():
    config = read_model("demo")
    slow, quick = (plan(config, Machine(GIB, speed, 1e15), 256, 4, "auto", None) for speed in (10e9, 20e9))
    assert quick.decode == pytest.approx(2 * slow.decode)
    assert slow.decode < slow.batch_decode < 4 * slow.decode, "weights are read once for all"
    products = [plan(config, Machine(GIB, 1e15, speed), 256, 4, "auto", None).prefill for speed in (1e12, 3e12)]
    assert products[1] == pytest.approx(3 * products[0])


def test_the_advice():
    def made(weights: str, num_sequences: int) -> Plan:
        return Plan(weights=weights, weights_bytes=GIB, prefill=1.0, num_sequences=num_sequences)

    plans = [made("bfloat16", 3), made("int8", 9), made("int4", 12)]
    assert advice(plans, 100, 2).startswith("Take bfloat16: it has room for 3 sequences")
    assert advice(plans, 100, 4).startswith("Take int8 (--quantization int8)")
    assert "int4 has room for 12" in advice(plans, 100, 40)
    with pytest.raises(CacheSizeError, match="no sequence of 100 tokens fits beside the weights, which take 1.0 GiB"):
        advice([made("bfloat16", 0)], 100, 1)


def test_a_config_alone(tmp_path, capsys):
    shutil.copy(DEMO_FOLDER / "config.json", tmp_path)
    known = ["--memory", "2GiB", "--bandwidth", "20", "--tflops", "1"]
    for name in (tmp_path, tmp_path / "config.json"):
        assert main(["plan", str(name), *known, "--json"]) == 0
        data = json.loads(capsys.readouterr().out)
        assert data["machine"] == {"memory_bytes": 2 * GIB, "bytes_per_s": 2e10, "operations_per_s": 1e12}
        assert [each["weights"] for each in data["plans"]] == ["bfloat16", "int8", "int4"]
    assert main(["plan", "demo", *known, "--len", "1k"]) == 0
    out = capsys.readouterr().out
    assert "OF 1000" in out and "Take bfloat16" in out
    assert main(["plan", "demo", *known[2:], "--memory", "100MiB"]) == 2
    assert "no sequence of 1024 tokens fits" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--len", "--concurrency", "--bandwidth", "--tflops"])
@pytest.mark.parametrize("value", ["0", "-5"])
def test_what_makes_no_plan_is_refused(flag, value, capsys):
    """They divide something: each was a traceback."""
    assert main(["plan", "demo", "--bandwidth", "20", "--tflops", "1", f"{flag}={value}"]) == 2
    assert f"{flag} must be a number above 0, got {value}" in capsys.readouterr().err


def test_a_cache_that_an_engine_refuses(tmp_path, capsys):
    """It was planned."""
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= {"max_position_embeddings": 64, "first_k_dense_replace": 1}
    latent = {"kv_lora_rank": 32, "q_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 16, "v_head_dim": 16}
    data = {"architectures": ["DeepseekV3ForCausalLM"], "vocab_size": 4096, **sizes, **latent}
    (tmp_path / "config.json").write_text(json.dumps(data))
    known = ["plan", str(tmp_path), "--memory", "2GiB", "--bandwidth", "20", "--tflops", "1"]
    assert main([*known, "--kv-cache-dtype", "int8"]) == 0
    assert main([*known, "--kv-cache-dtype", "fp8"]) == 2
    assert "fp8 is not there for DeepseekV3ForCausalLM" in capsys.readouterr().err


def test_measured_speeds_are_of_this_machine(capsys):
    assert main(["plan", "demo", "--json"]) == 0
    machine = json.loads(capsys.readouterr().out)["machine"]
    assert machine["bytes_per_s"] > 1e8 and machine["operations_per_s"] > 1e9


@pytest.mark.parametrize("slow", [torch.bfloat16, torch.float32])
def test_products_are_measured_in_the_faster_numbers(monkeypatch, slow):
    """Torch's bfloat16 products took seconds on AVX2, and lullm was five times as fast as that limit."""
    rows = []

    def product(dtype, num_rows):
        rows.append((dtype, num_rows))
        return lambda: time.sleep(0.02 if dtype is slow else 0.001)

    monkeypatch.setattr(measure, "_product", product)
    _, operations_per_s = measure.measure()
    fast = torch.float32 if slow is torch.bfloat16 else torch.bfloat16
    assert [row for row in rows if row[1] > 32] == [(fast, measure.NUM_ROWS)]
    assert operations_per_s > 2 * measure.NUM_ROWS * measure.NUM_COLUMNS**2 / 0.02


def test_an_encoder_has_no_cache(tmp_path, capsys):
    """It ended with a division by zero."""
    config = {"architectures": ["BertModel"], "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    (tmp_path / "config.json").write_text(json.dumps(config | {"intermediate_size": 96, "vocab_size": 200}))
    known = [str(tmp_path / "config.json"), "--memory", "2GiB", "--bandwidth", "20", "--tflops", "1"]
    assert main(["plan", *known]) == 0
    assert "no KV cache" in capsys.readouterr().out
    assert main(["plan", *known, "--json"]) == 0
    [first, *_] = json.loads(capsys.readouterr().out)["plans"]
    assert first["prefill"] > 0 and first["weights_bytes"] > 0 and first["num_sequences"] == first["decode"] == 0
