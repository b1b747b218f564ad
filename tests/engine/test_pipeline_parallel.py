"""Layers cut into stages give the tokens of one worker, whatever the engine does meanwhile. Stages live in threads."""

import pytest
from kit.engine.prompts import random_prompts
from kit.folder.checkpoint import write_checkpoint
from kit.model.decisive import decisive_answers
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
    found = decisive_answers(str(qwen3_folder), 6, 24, **OPTIONS)
    return {prompt: answer.token_ids for prompt, answer in found.items()}


@pytest.fixture
def staged(qwen3_folder, monkeypatch):
    """Makes an engine of two stages."""
    use_threads(monkeypatch)
    opened = []

    def open_staged(folder=qwen3_folder, **options):
        llm = LLM(str(folder), **TWO | OPTIONS | options)
        opened.append(llm)
        return llm

    yield open_staged
    for llm in opened:
        llm.shutdown()


def tokens_of(outputs):
    return [[completion.token_ids for completion in output.outputs] for output in outputs]


def check_equal(llm, answers):
    found = tokens_of(llm.generate(list(answers), GREEDY, use_tqdm=False))
    assert found == [[expected] for expected in answers.values()]


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
    llm = staged(enable_sleep_mode=True)
    engine, found = llm.llm_engine, {}
    for prompt in answers:
        engine.add_request(prompt, prompt, GREEDY)
    for step in range(200):
        if step == 7:
            engine.sleep(level=level, mode="keep")
            engine.wake_up()
        for output in engine.step():
            found[output.request_id] = output.outputs[0].token_ids
        if not engine.has_unfinished_requests():
            break
    assert found == answers
    llm.collective_rpc("reload_weights")
    check_equal(llm, answers)


def test_new_weights(staged, tmp_path):
    """Each stage takes its own; what no stage knows is refused."""
    other = write_checkpoint(tmp_path, "qwen3", initializer_range=0.25)
    expected = {p: a.token_ids for p, a in decisive_answers(str(other), 4, 24, **OPTIONS).items()}
    llm = staged(enable_sleep_mode=True)
    tensors = load_file(other / "model.safetensors")
    assert llm.update_weights(iter(tensors.items())) == len(tensors)
    check_equal(llm, expected)
    llm.sleep(level=1)
    llm.wake_up()
    check_equal(llm, expected)
    for name in ("model.layers.0.nothing.weight", "model.layers.2.nothing.weight", "nothing.weight"):
        with pytest.raises(ModelLoadError, match="unexpected tensor .*nothing"):
            llm.update_weights([(name, tensors["lm_head.weight"])])


@pytest.mark.parametrize("options", [{"quantization": "int8"}, {"quantization": "int4"}, {"kv_cache_dtype": "fp8"}])
def test_quantized(staged, qwen3_folder, options):
    expected = decisive_answers(str(qwen3_folder), 4, 24, **OPTIONS | options)
    check_equal(staged(**options), {p: answer.token_ids for p, answer in expected.items()})


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
    expected = decisive_answers(str(mixed_folder), 4, 40, **OPTIONS)
    check = {p: answer.token_ids[:24] for p, answer in expected.items()}
    check_equal(staged(mixed_folder, max_num_batched_tokens=16, max_num_seqs=4), check)


@pytest.mark.skipif(absence() is not None, reason="no native ops")
def test_recorded_steps(staged, answers):
    """What comes in and goes out stands outside of a recording: replays have the bits of eager steps."""
    found = []
    for enforce_eager in (False, True):
        llm = staged(enforce_eager=enforce_eager)
        check_equal(llm, answers)
        params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, logprobs=1)
        completions = [output.outputs[0] for output in llm.generate(list(answers)[:2], params, use_tqdm=False)]
        found.append([[entry.logprob for at in each.logprobs for entry in at.values()] for each in completions])
        for worker in llm.llm_engine.model_executor.workers:
            graphs = worker.model_runner.graphs
            assert graphs.refusal is None and bool(graphs.sizes) != enforce_eager
    assert found[0] == found[1]


def test_too_many_stages(staged, qwen3_folder):
    with pytest.raises(ConfigError, match="with 3 layers cannot be cut into 4 stages"):
        staged(pipeline_parallel_size=4)
    with pytest.raises(UnsupportedError, match="computed by transformers"):
        staged(model_impl="transformers")
