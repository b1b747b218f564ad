"""EngineConfig: ranges, what does not exist yet is refused, resolution against the model."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from lullm.config.engine import EngineConfig
from lullm.config.model import ModelConfig
from lullm.config.option.sleep_after import SleepRung
from lullm.errors import ConfigError, UnsupportedError
from lullm.types.layer_kind import RecurrentState

MODEL = ModelConfig.from_dict(
    {
        "architectures": ["Qwen3ForCausalLM"],
        "vocab_size": 10,
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "max_position_embeddings": 128,
        "torch_dtype": "bfloat16",
    }
)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model", ""), ("model", 3), ("dtype", "fp8"), ("device", "tpu"), ("load_format", "pt"), ("seed", -1),
        ("max_model_len", 0), ("max_num_seqs", 0), ("max_num_batched_tokens", 1.5), ("block_size", 0),
        ("kv_cache_memory_bytes", 0), ("num_gpu_blocks_override", -1), ("watermark", 1.0), ("watermark", -0.1),
        ("swap_space", 1e308), ("max_num_batched_tokens", 10**9), ("max_num_seqs", 10**9),
        ("swap_space", "4"), ("enable_prefix_caching", 1), ("scheduling_policy", "lifo"), ("max_logprobs", -2),
        ("logprobs_mode", "x"), ("tokenizer", 1), ("preemption_mode", "x"), ("delay_factor", -1),
        ("threads", 0), ("threads", "2"), ("threads", 257),
        ("sleep_after", 60), ("sleep_dir", "."), ("verify_wake", False),
        ("auto_wake", "yes"), ("wake_timeout", 0), ("wake_timeout", "5"),
        ("max_num_wake_waiting", 0),
    ],
)  # fmt: skip
def test_out_of_range(field, value):
    with pytest.raises(ConfigError, match=field) as error:
        EngineConfig(**{field: value})
    assert not isinstance(error.value, UnsupportedError)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("distributed_executor_backend", "slurm"),
    ],
)  # fmt: skip
def test_missing_machinery_is_refused(field, value):
    with pytest.raises(UnsupportedError, match=field):
        EngineConfig(**{field: value})


@pytest.mark.parametrize("layers", ["3", "1,1,1", "0,3", "1,-2", "1,x", "", "1," + "9" * 5000])
def test_stages_that_make_no_sense(layers):
    with pytest.raises(ConfigError, match="how many layers each stage has.* pipeline_parallel_size=2"):
        EngineConfig(pipeline_parallel_size=2, pipeline_layers=layers)


def test_stages_overlap_by_themselves():
    with pytest.raises(ConfigError, match="async_scheduling is for one stage"):
        EngineConfig(pipeline_parallel_size=2, async_scheduling=True)
    resolved = EngineConfig(pipeline_parallel_size=2, pipeline_layers="1, 2").resolve(MODEL)
    assert (resolved.pipeline_layers, resolved.max_in_flight, resolved.feeds_back) == ((1, 2), 2, False)
    assert EngineConfig(async_scheduling=True).resolve(MODEL).feeds_back


def test_workers_that_share_a_model():
    assert EngineConfig(tensor_parallel_size=2).tensor_parallel_size == 2
    assert EngineConfig(tensor_parallel_size=2, device="cuda").executor_backend == "mp"
    sizes = {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}
    for backend in ("mp", "ray", "external_launcher"):
        assert EngineConfig(**sizes, device="cuda", distributed_executor_backend=backend).num_workers == 4
    with pytest.raises(ConfigError, match="'uni' runs one worker, not 2: use 'mp'"):
        EngineConfig(tensor_parallel_size=2, distributed_executor_backend="uni")


def test_what_only_a_gpu_has():
    on_gpu = EngineConfig(device="cuda").resolve(MODEL)
    assert (on_gpu.device, on_gpu.gpu_memory_utilization, on_gpu.async_scheduling) == ("cuda", 0.9, True)
    for share in (0.5, 1):
        assert EngineConfig(device="cuda", gpu_memory_utilization=share).gpu_memory_utilization == share
    with pytest.raises(ConfigError, match="gpu_memory_utilization"):
        EngineConfig(device="cuda", gpu_memory_utilization=1.5)
    with pytest.raises(UnsupportedError, match="kv_cache_dtype"):
        EngineConfig(device="cuda", kv_cache_dtype="int8")
    on_cpu = EngineConfig().resolve(MODEL)
    assert (on_cpu.device, on_cpu.async_scheduling) == ("cpu", False)
    assert EngineConfig(async_scheduling=True).resolve(MODEL).async_scheduling
    with pytest.raises(ConfigError, match="async_scheduling"):
        EngineConfig(async_scheduling=1)
    sleeps = EngineConfig(device="cuda", enable_sleep_mode=True)
    assert sleeps.resolve(MODEL).keep_backup and not on_gpu.keep_backup and not on_cpu.keep_backup
    assert not dataclasses.replace(sleeps, keep_backup=False).resolve(MODEL).keep_backup
    with pytest.raises(ConfigError, match="keep_backup=True needs enable_sleep_mode"):
        EngineConfig(device="cuda", keep_backup=True)
    with pytest.raises(ConfigError, match="pin_backup=True needs enable_sleep_mode"):
        EngineConfig(device="cuda", pin_backup=True)
    with pytest.raises(UnsupportedError, match="pin_backup=True is not supported yet: on a CPU nothing is pinned"):
        EngineConfig(pin_backup=True, enable_sleep_mode=True)
    with pytest.raises(UnsupportedError, match="keep_backup=True is not supported yet: on a CPU"):
        EngineConfig(keep_backup=True, enable_sleep_mode=True)


def test_kv_cache_dtype():
    assert [
        EngineConfig(kv_cache_dtype=name).resolve(MODEL).kv_dtype for name in ("auto", "int8", "fp8", "fp8_e4m3")
    ] == [*("bfloat16", "int8", "fp8_e4m3", "fp8_e4m3")]
    assert (
        EngineConfig(device="cuda", kv_cache_dtype="fp8", calculate_kv_scales=True).resolve(MODEL).kv_dtype
        == "fp8_e4m3"
    )
    with pytest.raises(UnsupportedError, match="fp8_e4m3"):
        EngineConfig(kv_cache_dtype="fp8_e5m2")
    for value in ("auto", "int8"):
        with pytest.raises(ConfigError, match="calculate_kv_scales needs"):
            EngineConfig(kv_cache_dtype=value, calculate_kv_scales=True)
    with pytest.raises(ConfigError, match="calculate_kv_scales must be"):
        EngineConfig(kv_cache_dtype="fp8", calculate_kv_scales=1)


def test_attention_backend():
    for backend in ("flashinfer", "flash-attn", "triton"):
        with pytest.raises(UnsupportedError, match="attention_backend"):
            EngineConfig(attention_backend=backend)
    with pytest.raises(ConfigError, match="attention_backend"):
        EngineConfig(attention_backend="xformers")
    assert EngineConfig(attention_backend="torch").resolve(MODEL).attention_backend == "torch"
    EngineConfig(attention_backend="triton", device="cuda")
    EngineConfig(attention_backend="torch", device="cuda")


def test_batch_invariance_needs_attention_of_its_own():
    with pytest.raises(ConfigError, match="batch_invariant needs lullm's own attention"):
        EngineConfig(batch_invariant=True, attention_backend="torch")
    assert EngineConfig(batch_invariant=True).resolve(MODEL).batch_invariant


def test_tokens_per_step_cover_the_seats():
    with pytest.raises(ConfigError, match="max_num_batched_tokens"):
        EngineConfig(max_num_seqs=8, max_num_batched_tokens=7)


def test_options_that_need_others():
    with pytest.raises(ConfigError, match="prefill-first"):
        EngineConfig(delay_factor=0.5)
    with pytest.raises(ConfigError, match="swap_space"):
        EngineConfig(preemption_mode="swap", swap_space=0)
    with pytest.raises(ConfigError, match="max_num_batched_tokens"):
        EngineConfig(enable_chunked_prefill=False, max_num_batched_tokens=127, max_num_seqs=8).resolve(MODEL)


def test_unknown_option():
    with pytest.raises(ConfigError, match="'max_modellen'; did you mean max_model_len"):
        EngineConfig.from_options({"max_modellen": 3})


def test_none_is_the_default_where_it_is_no_value():
    config = EngineConfig.from_options({"enable_prefix_caching": None, "block_size": None, "seed": None})
    assert (config.enable_prefix_caching, config.block_size, config.seed) == (True, 16, None)


def test_paths_are_strings():
    options = {"model": Path("folder"), "tokenizer": Path("other"), "download_dir": None}
    config = EngineConfig.from_options(options)
    assert (config.model, config.tokenizer) == ("folder", "other")


@pytest.mark.parametrize("dtype", ["half", torch.float16, "float16"])
def test_names_of_dtypes(dtype):
    assert EngineConfig(dtype=dtype).dtype == "float16"
    assert EngineConfig(dtype="float").dtype == EngineConfig(dtype=torch.float32).dtype == "float32"
    for wrong in (torch.int8, 3, "floaty"):
        with pytest.raises(ConfigError, match="dtype must be one of"):
            EngineConfig(dtype=wrong)


def test_the_share_of_memory_on_a_cpu():
    assert EngineConfig().resolve(MODEL).gpu_memory_utilization == 0.25
    assert EngineConfig(gpu_memory_utilization=0.5).resolve(MODEL).gpu_memory_utilization == 0.5


def test_resolve():
    config = EngineConfig(model="x").resolve(MODEL)
    assert (config.max_model_len, config.dtype, config.device, config.served_model_name) == (
        128,
        "bfloat16",
        "cpu",
        "x",
    )
    assert EngineConfig(max_model_len=64, dtype="float32").resolve(MODEL).dtype == "float32"
    with pytest.raises(ConfigError, match="128 positions"):
        EngineConfig(max_model_len=129).resolve(MODEL)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.seed = 3


def test_what_was_said_stays_in_the_resolved_config():
    said = EngineConfig(model="x", seed=None, block_size=8, enable_sleep_mode=True, sleep_dir="/d", sleep_after="1m:1")
    resolved = said.resolve(MODEL)
    names = {field.name for field in dataclasses.fields(resolved)} - {"draft"}
    assert names < {field.name for field in dataclasses.fields(said)}
    for name in names:
        assert getattr(resolved, name) == getattr(said, name) or getattr(said, name) in (None, "auto"), name
        assert getattr(resolved, name) != "auto" or name in ("kv_cache_dtype", "preemption_mode", "attention_backend",
                                                            "load_format", "model_impl"), name  # fmt: skip


def ngram(**values):
    return json.dumps({"method": "ngram", "num_speculative_tokens": 5, **values})


def drafting(**values):
    return json.dumps({"model": "small", "num_speculative_tokens": 3, **values})


def test_a_draft_model():
    found = EngineConfig(speculative_config=drafting(revision="main", draft_tensor_parallel_size=1)).resolve(MODEL)
    speculation = found.speculative_config
    assert (speculation.method, speculation.model, speculation.revision) == ("draft_model", "small", "main")
    assert speculation.adaptive and found.draft is None, "its folder is not read here"
    fixed = EngineConfig(speculative_config=drafting(adaptive=False, method="draft_model"))
    assert not fixed.resolve(MODEL).speculative_config.adaptive
    with pytest.raises(UnsupportedError, match="does not go with pipeline_parallel_size"):
        EngineConfig(speculative_config=drafting(), pipeline_parallel_size=2)
    with pytest.raises(UnsupportedError, match="not supported on a GPU"):
        EngineConfig(speculative_config=drafting(quantization="int8"), device="cuda")


def test_processes_of_a_launcher_guess_alike():
    options = {"distributed_executor_backend": "external_launcher", "seed": 0}
    assert EngineConfig(speculative_config=ngram(), **options).resolve(MODEL).speculative_config.adaptive is False
    with pytest.raises(ConfigError, match="a clock of its own"):
        EngineConfig(speculative_config=ngram(adaptive=True), **options)


@pytest.mark.parametrize(
    ("text", "bounds"),
    [
        (ngram(), (5, 5)),
        (ngram(prompt_lookup_max=4, prompt_lookup_min=2), (2, 4)),
        (ngram(prompt_lookup_max=3), (3, 3)),
        (ngram(prompt_lookup_min=2), (2, 2)),
    ],
)
def test_speculation(text, bounds):
    config = EngineConfig(speculative_config=text).resolve(MODEL)
    found = config.speculative_config
    assert found.num_speculative_tokens == 5 and (found.prompt_lookup_min, found.prompt_lookup_max) == bounds
    for given in (EngineConfig.from_options, lambda options: EngineConfig(**options)):
        assert given({"speculative_config": json.loads(text)}).resolve(MODEL) == config
    assert EngineConfig(device="cuda").resolve(MODEL).async_scheduling
    assert not EngineConfig(device="cuda", speculative_config=text).resolve(MODEL).async_scheduling
    assert EngineConfig.from_options({"speculative_config": {}}).resolve(MODEL).speculative_config is None


def suffix(**values):
    return json.dumps({"method": "suffix", **values})


def test_suffixes_have_as_many_guesses_as_an_ending_may_be_long():
    def found(**values):
        return EngineConfig(speculative_config=suffix(**values)).resolve(MODEL).speculative_config

    assert (found().num_speculative_tokens, found().suffix_decoding_max_tree_depth) == (24, 24)
    assert found(suffix_decoding_max_tree_depth=8).num_speculative_tokens == 8
    assert found(suffix_decoding_max_tree_depth=8, num_speculative_tokens=3).num_speculative_tokens == 3
    assert found(suffix_decoding_min_token_prob=0, suffix_decoding_max_cached_requests=0).adaptive


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("[]", ConfigError, "must be a JSON object"),
        (suffix(prompt_lookup_max=3), ConfigError, "not prompt_lookup_max"),
        (suffix(suffix_decoding_max_tree_depth=1), ConfigError, "must be an integer from 2 to 1024"),
        (suffix(suffix_decoding_max_cached_requests=-1), ConfigError, "an integer of at least 0"),
        (suffix(suffix_decoding_min_token_prob=1.5), ConfigError, "must be from 0 to 1,"),
        (suffix(suffix_decoding_max_spec_factor="2"), ConfigError, "must be from 0 to 1024"),
        (suffix(suffix_decoding_max_spec_factor=float("nan")), ConfigError, "must be from 0 to 1024"),
        ('{"method": "eagle"}', UnsupportedError, "heads that draft"),
        ('{"num_speculative_tokens": 5}', UnsupportedError, "method is"),
        ('{"method": ["ngram"]}', UnsupportedError, "method is"),
        ('{"method": "ngram"}', ConfigError, 'needs "num_speculative_tokens"'),
        (ngram(model="x"), ConfigError, "not model"),
        (ngram(prompt_lookup_max=0), ConfigError, "prompt_lookup_max must be an integer from 1"),
        (ngram(prompt_lookup_max=True), ConfigError, "prompt_lookup_max must be an integer from 1"),
        (ngram(prompt_lookup_max=2, prompt_lookup_min=3), ConfigError, "must be at most"),
        (ngram(adaptive=1), ConfigError, "adaptive must be true or false"),
        ('{"model": "x"}', ConfigError, 'needs "num_speculative_tokens"'),
        ('{"method": "draft_model", "num_speculative_tokens": 3}', ConfigError, "needs a model"),
        (drafting(prompt_lookup_max=3), ConfigError, "not prompt_lookup_max"),
        (drafting(model=3), ConfigError, "model must be text"),
        (drafting(quantization="awq"), ConfigError, "must be int8 or int4"),
        (drafting(max_model_len=0), ConfigError, "of at least 1"),
        (drafting(draft_tensor_parallel_size=2), UnsupportedError, "leave it out"),
    ],
)
def test_speculation_that_is_refused(text, error, message):
    with pytest.raises(error, match=message):
        EngineConfig(speculative_config=text)


def test_speculation_needs_each_result_and_no_states():
    with pytest.raises(ConfigError, match="does not go with async_scheduling"):
        EngineConfig(speculative_config=ngram(), async_scheduling=True)
    recurrent = dataclasses.replace(MODEL, layer_kinds=(RecurrentState(((4,),)),))
    with pytest.raises(UnsupportedError, match="cannot go back"):
        EngineConfig(speculative_config=ngram()).resolve(recurrent)


def test_idle():
    idle = EngineConfig().idle
    assert (idle.rungs, idle.wakes_by_request, idle.wake_timeout, idle.max_num_wake_waiting) == ((), False, 300.0, 512)
    sleeps = EngineConfig(enable_sleep_mode=True, sleep_after="60s:1,10m:disk", wake_timeout=5)
    assert sleeps.idle.rungs == (SleepRung(60, 1, "auto"), SleepRung(600, 1, "disk"))
    assert sleeps.idle.wakes_by_request and sleeps.idle.wake_timeout == 5
    assert not dataclasses.replace(sleeps, auto_wake=False, wake_timeout=300.0).idle.wakes_by_request
    assert EngineConfig(enable_sleep_mode=True, auto_wake=True).idle.wakes_by_request
