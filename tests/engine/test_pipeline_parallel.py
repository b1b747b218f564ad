"""Layers cut into stages give the tokens of one worker, whatever the engine does meanwhile. Stages live in threads."""

import pytest
from kit.engine.prompts import random_prompts
from kit.engine.same_tokens import (
    check_equal,
    check_new_weights,
    check_recordings,
    check_sleep_in_the_middle,
    engines,
    tokens_of,
)
from kit.folder.checkpoint import write_tokenizer
from kit.model.decisive import decisive_tokens
from kit.model.families import CASES
from kit.model.golden import SIZES, random_model
from kit.worker.threads import use_threads
from safetensors.torch import load_file

from lullm import LLM, SamplingParams, StructuredOutputsParams
from lullm.errors import ConfigError, ModelLoadError, UnsupportedError
from lullm.ops.cpu.library import absence

from .test_overlap import run, workload

OPTIONS = {"dtype": "float32", "max_model_len": 128, "block_size": 8}
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
SCARCE = {"num_gpu_blocks_override": 40, "block_size": 8}
TWO = {"pipeline_parallel_size": 2}


@pytest.fixture(scope="module")
def requests():
    return workload(40, seed=7)


@pytest.fixture(scope="module")
def expected(qwen3_folder, requests):
    return run(qwen3_folder, requests)[0]


@pytest.mark.parametrize(
    "options",
    [
        TWO,
        {"pipeline_parallel_size": 2, "pipeline_layers": "1,2"},
        {"pipeline_parallel_size": 3},
        TWO | SCARCE | {"preemption_mode": "recompute"},
        TWO | SCARCE | {"preemption_mode": "swap"},
        TWO | {"enable_chunked_prefill": False, "max_num_batched_tokens": 128},
        TWO | {"tensor_parallel_size": 2},
    ],
    ids=["two", "uneven", "three", "recompute", "swap", "prefill first", "two by two"],
)
def test_the_same_deltas(qwen3_folder, requests, expected, monkeypatch, options):
    """Chunks of prompts, forks, beams, penalties, prefixes, stop strings and log-probabilities in one batch."""
    use_threads(monkeypatch)
    tokens, num_ahead, stats = run(qwen3_folder, requests, **options)
    assert tokens.keys() == expected.keys()
    for key, (ids, text, _, end) in tokens.items():
        assert (ids, text, end) == (*expected[key][:2], expected[key][3]), key
    assert num_ahead > 50, "as many steps in flight as stages, most of the time"
    assert stats.num_preemptions > 0 or "num_gpu_blocks_override" not in options


@pytest.fixture(scope="module")
def answers(qwen3_folder):
    return decisive_tokens(qwen3_folder, 6, 24, **OPTIONS)


@pytest.fixture
def staged(qwen3_folder, monkeypatch):
    """Makes an engine of two stages."""
    use_threads(monkeypatch)
    with engines(qwen3_folder, TWO | OPTIONS) as open_staged:
        yield open_staged


def test_each_stage_has_its_layers_only(staged, qwen3_folder):
    def names_of(worker):
        return {name for name, _ in worker.loaded.model.named_parameters()}

    with LLM(str(qwen3_folder), **OPTIONS) as alone:
        [whole] = alone.collective_rpc(names_of)
        [block_bytes] = alone.collective_rpc(lambda worker: worker.pools.block_bytes)
    llm = staged(pipeline_layers="1,2")
    first, last = llm.collective_rpc(names_of)
    assert first | last == whole and not first & last
    assert {name.split(".")[2] for name in first if "layers" in name} == {"0"}
    assert {name for name in last if "layers" not in name} == {"model.norm.weight", "lm_head.weight"}
    assert llm.collective_rpc(lambda w: 3 * w.pools.block_bytes) == [block_bytes, 2 * block_bytes]


@pytest.mark.parametrize("level", [0, 1, 2])
def test_a_sleep_in_the_middle(staged, answers, level):
    check_sleep_in_the_middle(staged(enable_sleep_mode=True), answers, level)


def test_new_weights(staged, tmp_path):
    """Each stage takes its own; what no stage knows is refused."""
    llm = staged(enable_sleep_mode=True)
    tensors = check_new_weights(llm, tmp_path, **OPTIONS)
    for name in ("model.layers.0.nothing.weight", "model.layers.2.nothing.weight", "nothing.weight"):
        with pytest.raises(ModelLoadError, match="unexpected tensor .*nothing"):
            llm.update_weights([(name, tensors["lm_head.weight"])])


@pytest.mark.parametrize("options", [{"quantization": "int8"}, {"quantization": "int4"}, {"kv_cache_dtype": "fp8"}])
def test_quantized(staged, qwen3_folder, options):
    check_equal(staged(**options), decisive_tokens(qwen3_folder, 4, 24, **OPTIONS | options))


def test_prompt_logprobs_and_grammars(staged, qwen3_folder):
    letters = StructuredOutputsParams(regex="[ab]+")
    params = [
        SamplingParams(temperature=0.0, max_tokens=4, prompt_logprobs=1, logprobs=1),
        SamplingParams(temperature=1.0, seed=2, max_tokens=12, structured_outputs=letters),
    ] * 2
    prompts = random_prompts(4, 60)
    found = []
    with LLM(str(qwen3_folder), **OPTIONS) as alone:
        found.append(alone.generate(prompts, params, use_tqdm=False))
    found.append(staged(max_num_batched_tokens=24, max_num_seqs=4).generate(prompts, params, use_tqdm=False))
    assert tokens_of(found[0]) == tokens_of(found[1])
    logprobs = [
        [entry.logprob for output in outputs[::2] for at in output.prompt_logprobs[1:] for entry in at.values()]
        for outputs in found
    ]
    assert logprobs[1] == pytest.approx(logprobs[0], abs=1e-5) and len(logprobs[0]) == 40


def test_pooling(staged, qwen3_folder):
    prompts = random_prompts(4, 60)
    with LLM(str(qwen3_folder), **OPTIONS, convert="embed") as alone:
        expected = [output.outputs.embedding for output in alone.embed(prompts, use_tqdm=False)]
    llm = staged(convert="embed", max_num_batched_tokens=24, max_num_seqs=4)
    found = [output.outputs.embedding for output in llm.embed(prompts, use_tqdm=False)]
    assert [pytest.approx(vector, abs=1e-5) for vector in expected] == found


def test_windows(staged, mixed_folder):
    """Groups are those of the whole model on all stages, whatever layers they have."""
    expected = decisive_tokens(mixed_folder, 4, 40, **OPTIONS)
    check_equal(staged(mixed_folder, max_num_batched_tokens=16, max_num_seqs=4), expected, 40)


@pytest.fixture(scope="module")
def gemma4_folder(tmp_path_factory):
    """An embedding per layer, 10 layers, of which the last 3 share keys and values of two others."""
    folder = tmp_path_factory.mktemp("gemma4")
    sizes = {"num_hidden_layers": 10, "layer_types": ["sliding_attention", "full_attention"] * 5, "vocab_size": 320}
    random_model("Gemma4", SIZES | CASES["Gemma4"].engine | sizes).save_pretrained(folder)
    write_tokenizer(folder)
    return folder


@pytest.mark.parametrize(
    "options",
    [TWO, {"pipeline_parallel_size": 3}, {"pipeline_layers": "3,7", "tensor_parallel_size": 2}],
    ids=["two", "three", "two by two"],
)
def test_an_embedding_per_layer(staged, gemma4_folder, options):
    """Every stage has the columns of its layers, also in integers, behind a sleep, and when whole tensors come."""
    expected = decisive_tokens(gemma4_folder, 4, 16, **OPTIONS)
    llm = staged(gemma4_folder, enable_sleep_mode=True, max_num_batched_tokens=16, max_num_seqs=4, **options)
    check_equal(llm, expected, 16)
    llm.sleep(level=2)
    llm.wake_up()
    check_equal(llm, expected, 16)
    tensors = load_file(gemma4_folder / "model.safetensors")
    table = "model.embed_tokens_per_layer.weight"
    llm.update_weights([(table, tensors[table].roll(1, 0))])
    changed = llm.generate(list(expected), GREEDY, use_tqdm=False)
    assert tokens_of(changed) != [[tokens] for tokens in expected.values()]
    assert llm.update_weights(iter(tensors.items())) == len(tensors)
    check_equal(llm, expected, 16)
    quantized = decisive_tokens(gemma4_folder, 2, 16, **OPTIONS, quantization="int8")
    check_equal(staged(gemma4_folder, quantization="int8", **options), quantized, 16)


@pytest.mark.skipif(absence() is not None, reason="no native ops")
def test_recorded_steps(staged, answers):
    """What comes in and goes out stands outside of a recording."""
    check_recordings(staged, answers)


def test_too_many_stages(staged, qwen3_folder):
    with pytest.raises(ConfigError, match="with 3 layers cannot be cut into 4 stages"):
        staged(pipeline_parallel_size=4)
    with pytest.raises(UnsupportedError, match="computed by transformers"):
        staged(model_impl="transformers")
