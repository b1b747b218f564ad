"""`lullm plan` of adapters and draft models: the bytes of a started engine's arenas, on one worker and on several."""

import json

import pytest
from kit.folder.draft import write_draft
from kit.worker.threads import use_threads

from lullm import LLM, EngineConfig
from lullm.cli.main import main
from lullm.cli.plan.beside import Beside, read_beside
from lullm.cli.plan.layout import Devices, Layout, Planner
from lullm.cli.plan.model import read_model
from lullm.cli.plan.roofline import PROCESS_BYTES, Machine, plan
from lullm.errors import ConfigError, ModelLoadError, UnsupportedError
from lullm.units import GIB
from lullm.weights.folder import DEMO_FOLDER

MACHINE = Machine(4 * GIB, 20e9, 1e12)
DEVICES = Devices(2, Machine(GIB, 20e9, 1e12), 10e9, 1e-5)
OPTIONS = {"max_model_len": 256, "num_gpu_blocks_override": 32}
ADAPTING = {"enable_lora": True, "max_loras": 3, "max_lora_rank": 24}
KNOWN = ["plan", "demo", "--memory", "2GiB", "--bandwidth", "20", "--tflops", "1"]


@pytest.fixture(scope="module")
def draft(tmp_path_factory):
    return write_draft(DEMO_FOLDER, tmp_path_factory.mktemp("draft"), num_layers=1)


def guessing(draft, **more) -> dict[str, str]:
    return {"speculative_config": json.dumps({"model": str(draft), "num_speculative_tokens": 2, **more})}


def beside(**options) -> Beside:
    return read_beside(EngineConfig(**options), read_model("demo"))


def arenas_of(llm: LLM) -> list[dict[str, int]]:
    """The bytes of each worker's arenas by their tags, and of a KV block."""
    executor = llm.llm_engine.model_executor
    workers = getattr(executor, "workers", None) or [executor.driver_worker]
    return [{each.tag: each.used_bytes for each in w.arenas} | {"block": w.pools.block_bytes} for w in workers]


@pytest.mark.parametrize("quantization", [None, "int8"])
@pytest.mark.parametrize("max_cpu_loras", [None, 5])
def test_adapters(quantization, max_cpu_loras):
    """Host memory keeps as many again, or as many as it is said."""
    options = ADAPTING | {"max_cpu_loras": max_cpu_loras}
    found = plan(read_model("demo"), MACHINE, 256, 4, "auto", quantization, beside(**options))
    with LLM("demo", quantization=quantization, **OPTIONS, **options) as llm:
        [arenas] = arenas_of(llm)
    places, num_kept = arenas["lora"], max_cpu_loras or 3
    assert places > 100_000
    assert found.adapters_bytes == pytest.approx(places * (1 + num_kept / 3), rel=0.02)
    assert found.weights_bytes == pytest.approx(arenas["weights"], rel=0.02)
    left = MACHINE.memory_bytes - PROCESS_BYTES - found.weights_bytes - found.adapters_bytes
    assert found.num_sequences == left // (found.kv_bytes_per_token * 256)


@pytest.mark.parametrize("kv_cache_dtype", ["auto", "int8"])
@pytest.mark.parametrize("quantization", [None, "int8"])
def test_a_draft_model(draft, quantization, kv_cache_dtype):
    """Its weights, and its part of each block; speeds are those without it."""
    options = guessing(draft, quantization=quantization)
    found = plan(read_model("demo"), MACHINE, 256, 4, kv_cache_dtype, None, beside(**options))
    with LLM("demo", kv_cache_dtype=kv_cache_dtype, **OPTIONS, **options) as llm:
        [arenas] = arenas_of(llm)
    assert found.draft_bytes == pytest.approx(arenas["draft"], rel=0.02)
    assert found.kv_bytes_per_token == pytest.approx(arenas["block"] / 16, rel=0.02)
    left = MACHINE.memory_bytes - PROCESS_BYTES - found.weights_bytes - found.draft_bytes
    assert found.num_sequences == left // (found.kv_bytes_per_token * 256)
    alone = plan(read_model("demo"), MACHINE, 256, 4, kv_cache_dtype, None)
    assert (found.decode, found.prefill) == (alone.decode, alone.prefill)


@pytest.mark.parametrize("layout", [Layout(2, 1, 1), Layout(1, 2, 1)], ids=str)
def test_adapters_of_several_workers(layout, monkeypatch):
    found = Planner(read_model("demo"), None, "auto", beside(**ADAPTING)).plan(layout, DEVICES, 256, 4)
    use_threads(monkeypatch)
    sizes = {"tensor_parallel_size": layout.tensor, "pipeline_parallel_size": layout.pipeline}
    with LLM("demo", **OPTIONS, **ADAPTING, **sizes) as llm:
        places = max(arenas["lora"] for arenas in arenas_of(llm))
    assert found.adapters_bytes == pytest.approx(2 * places, rel=0.02)
    left = DEVICES.each.memory_bytes - found.weights_bytes - found.adapters_bytes
    assert found.num_blocks == pytest.approx(left / (found.kv_bytes_per_token * 16), abs=1)


def test_a_draft_model_of_several_workers(draft, monkeypatch):
    """As an engine, no stages."""
    planner = Planner(read_model("demo"), None, "auto", beside(**guessing(draft)))
    found = planner.plan(Layout(2, 1, 1), DEVICES, 256, 4)
    with pytest.raises(UnsupportedError, match="does not go with pipeline_parallel_size"):
        planner.plan(Layout(1, 2, 1), DEVICES, 256, 4)
    use_threads(monkeypatch)
    with LLM("demo", tensor_parallel_size=2, **OPTIONS, **guessing(draft)) as llm:
        arenas = arenas_of(llm)[0]
    assert found.draft_bytes == pytest.approx(arenas["draft"], rel=0.02)
    assert found.kv_bytes_per_token == pytest.approx(arenas["block"] / 16, rel=0.02)


def test_the_flags_are_an_engines(draft, capsys):
    speculation = guessing(draft)["speculative_config"]
    flags = ["--enable-lora", "--max-loras", "3", "--max-lora-rank", "24", "--speculative-config", speculation]
    assert main([*KNOWN, *flags, "--json"]) == 0
    first = json.loads(capsys.readouterr().out)["plans"][0]
    expected = plan(read_model("demo"), MACHINE, 256, 4, "auto", None, beside(**ADAPTING, **guessing(draft)))
    assert (first["adapters_bytes"], first["draft_bytes"]) == (expected.adapters_bytes, expected.draft_bytes)
    assert main([*KNOWN, *flags]) == 0
    out = capsys.readouterr().out
    assert "ADAPTERS" in out and "DRAFT" in out
    assert main([*KNOWN, *flags, "--gpus", "2", "--cpu"]) == 0
    out = capsys.readouterr().out
    assert "ADAPTERS" in out and "does not go with pipeline_parallel_size" in out
    assert main(KNOWN) == 0
    out = capsys.readouterr().out
    assert "ADAPTERS" not in out and "DRAFT" not in out


def test_on_a_gpu_the_host_keeps_adapters_elsewhere(capsys):
    sizes = []
    for way in (["--gpus", "1", "--link", "1"], ["--gpus", "1", "--cpu"]):
        assert main([*KNOWN, "--enable-lora", "--json", *way]) == 0
        sizes.append(json.loads(capsys.readouterr().out)["plans"][0]["adapters_bytes"])
    assert 2 * sizes[0] == sizes[1] > 0


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--max-loras", "2"], "--max-loras needs --enable-lora"),
        (["--enable-lora", "--max-loras", "0"], "--max-loras must be"),
        (["--speculative-config", "{"], "--speculative-config"),
        (["--speculative-config", '{"model": "/nowhere", "num_speculative_tokens": 2}'], "the draft model: "),
        (["--speculative-config", '{"method": "eagle", "num_speculative_tokens": 2}'], "heads that draft"),
        (["--enable-lora", "--max-loras", "64", "--max-lora-rank", "512"], "and adapters, "),
    ],
)
def test_what_makes_no_plan_is_refused(flags, words, capsys):
    assert main([*KNOWN[:2], "--memory", "560MiB", *KNOWN[4:], *flags]) == 2
    assert words in capsys.readouterr().err


def test_models_that_take_none(tmp_path, draft):
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    data = {"architectures": ["LlamaForCausalLM"], "vocab_size": 4096, "max_position_embeddings": 64, **sizes}
    (tmp_path / "config.json").write_text(json.dumps(data))
    with pytest.raises(ConfigError, match="they must have the same"):
        read_beside(EngineConfig(**guessing(draft)), read_model(str(tmp_path)))
    mamba = {"architectures": ["MambaForCausalLM"], "vocab_size": 4096, "state_size": 8, "expand": 2, "conv_kernel": 4}
    data = mamba | {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "time_step_rank": 4}
    (tmp_path / "config.json").write_text(json.dumps(data))
    model = read_model(str(tmp_path)).where_it_runs("cpu", 1)
    with pytest.raises(ModelLoadError, match="no layer of the model may have adapters"):
        plan(model, MACHINE, 64, 1, "auto", None, read_beside(EngineConfig(enable_lora=True), model))
