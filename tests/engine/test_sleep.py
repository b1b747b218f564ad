"""Sleep: memory is really released, addresses stay, conversations go on with the very next token."""

import pytest
import torch
from kit.engine.parts import backups_of, executor_of, model_of, weights_filled_by
from kit.engine.prompts import random_prompts

from lullm import LLM, SamplingParams
from lullm.errors import ConfigError, EngineAsleepError, InvalidRequestError, WakeUpError

OPTIONS = {"dtype": "float32", "max_model_len": 128, "enable_sleep_mode": True}
NUM_REQUESTS = 32
PROMPTS = random_prompts(NUM_REQUESTS, 60)
PARAMS = [
    SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True),
    SamplingParams(temperature=0.9, seed=3, n=4, max_tokens=40, ignore_eos=True),
    SamplingParams(n=3, beam_width=3, max_tokens=20, ignore_eos=True),
    SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True, prompt_logprobs=1),
] * (NUM_REQUESTS // 4)


@pytest.fixture(scope="module")
def expected(qwen3_folder):
    with LLM(str(qwen3_folder), **OPTIONS) as llm:
        return [[c.token_ids for c in o.outputs] for o in llm.generate(PROMPTS, PARAMS, use_tqdm=False)]


@pytest.fixture(scope="module")
def num_computed(qwen3_folder):
    """Tokens that a run without sleep computes."""
    with LLM(str(qwen3_folder), **OPTIONS) as llm:
        return run_with_sleeps(llm, every=10**6)[1]


@pytest.fixture
def llm(qwen3_folder):
    with LLM(str(qwen3_folder), **OPTIONS) as llm:
        yield llm


def run_with_sleeps(llm, every, **call):
    """All requests through the engine, with a sleep after every so many steps: (tokens, tokens computed)."""
    engine = llm.llm_engine
    launch, num_computed = executor_of(engine).launch_model, 0

    def count(plan):
        nonlocal num_computed
        num_computed += plan.num_tokens
        return launch(plan)

    executor_of(engine).launch_model = count
    for number, (prompt, params) in enumerate(zip(PROMPTS, PARAMS, strict=True)):
        engine.add_request(str(number), prompt, params)
    ended, steps = {}, 0
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.finished:
                ended[output.request_id] = [c.token_ids for c in output.outputs]
        steps += 1
        if steps % every == 0:
            llm.sleep(**call)
            llm.wake_up()
    return [ended[str(number)] for number in range(len(PROMPTS))], num_computed


@pytest.mark.parametrize(
    "call",
    [
        {"level": 1, "backup": "disk"},
        {"level": 1, "backup": "ram"},
        {"level": 1, "keep_prefix_cache": True},
        {"level": 1, "tags": ["kv_cache"]},
        {"level": 1, "tags": ["weights"]},
        {"level": 0},
    ],
    ids=str,
)
def test_running_requests_go_on_with_the_next_token(llm, expected, num_computed, call):
    assert run_with_sleeps(llm, every=7, **call) == (expected, num_computed), "and nothing is computed twice"
    assert llm.llm_engine.stats().num_used_blocks == 0


@pytest.mark.parametrize("call", [{"level": 2}, {"level": 2, "tags": ["weights"]}], ids=str)
def test_level_2_computes_them_again(llm, expected, num_computed, call):
    tokens, num = run_with_sleeps(llm, every=7, **call)
    assert tokens == expected and num > num_computed


@pytest.mark.parametrize("level", [1, 2])
def test_requests_that_are_swapped_out_sleep_too(qwen3_folder, expected, level):
    options = {"num_gpu_blocks_override": 40, "preemption_mode": "swap", "block_size": 8}
    with LLM(str(qwen3_folder), **OPTIONS, **options) as llm:
        assert run_with_sleeps(llm, every=9, level=level)[0] == expected
        assert llm.llm_engine.stats().num_used_blocks == 0
        assert any(action == "swap" for action, _ in llm.llm_engine.stats().preemptions_total)


@pytest.mark.parametrize(("keep", "level", "num_cached"), [(True, 1, 96), (False, 1, 0), (False, 2, 0), (False, 0, 96)])
def test_the_prefix_cache(llm, keep, level, num_cached):
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    prompt = list(range(3, 103))
    [first] = llm.generate(prompt, params, use_tqdm=False)
    report = llm.sleep(level, keep_prefix_cache=keep)
    assert (report.backed_up_bytes > 0) == keep
    llm.wake_up()
    [second] = llm.generate(prompt, params, use_tqdm=False)
    assert second.num_cached_tokens == num_cached and second.outputs[0].token_ids == first.outputs[0].token_ids


def test_what_running_requests_hold_can_still_be_found(llm):
    """Blocks that are saved for a request serve others too, whether or not the rest of the cache is kept."""
    engine = llm.llm_engine
    prompt = list(range(3, 103))
    engine.add_request("x", prompt, PARAMS[0])
    engine.step()
    llm.sleep(1)
    llm.wake_up()
    [output] = llm.generate(prompt, SamplingParams(max_tokens=1), use_tqdm=False)
    assert output.num_cached_tokens == 96


def test_without_a_prefix_cache_there_is_none_to_keep(qwen3_folder):
    with (
        LLM(str(qwen3_folder), **OPTIONS, enable_prefix_caching=False) as llm,
        pytest.raises(InvalidRequestError, match="enable_prefix_caching") as error,
    ):
        llm.sleep(1, keep_prefix_cache=True)
    assert error.value.param == "keep_prefix_cache"


def test_unverified(qwen3_folder, expected):
    """Without checksums it works as well, and a flipped bit goes unseen."""
    with LLM(str(qwen3_folder), **OPTIONS, verify_wake=False) as llm:
        assert run_with_sleeps(llm, every=7, level=1)[0] == expected
        model = model_of(llm)
        llm.update_weights([("model.norm.weight", torch.ones(64))])
        llm.sleep(1, backup="ram")
        with torch.inference_mode():
            backups_of(llm)["weights"].store._chunks[0][3] ^= 0x80
        llm.wake_up()
        assert model.model.norm.weight.tolist() == [-1.0] + [1.0] * 63


def test_addresses_and_weights_come_back(llm):
    model = model_of(llm)
    before = {name: (p.data_ptr(), p.clone()) for name, p in model.named_parameters()}
    for level in (1, 2, 1):
        llm.sleep(level)
        assert all(not p.any() for p in model.parameters()), "released memory reads as zeros"
        llm.wake_up()
        for name, parameter in model.named_parameters():
            assert parameter.data_ptr() == before[name][0]
            assert torch.equal(parameter, before[name][1])


def test_while_asleep_work_is_refused_and_nothing_lost(llm, expected):
    engine = llm.llm_engine
    engine.add_request("kept", PROMPTS[0], PARAMS[0])
    engine.step()
    report = llm.sleep()
    assert llm.is_sleeping() and llm.sleeping_tags == ("weights", "kv_cache")
    assert report.backed_up_bytes > 0 and report.seconds > 0
    with pytest.raises(EngineAsleepError, match="wake_up"):
        llm.generate("x", use_tqdm=False)
    with pytest.raises(EngineAsleepError):
        engine.step()
    assert llm.sleep().tags == (), "idempotent"
    llm.wake_up(tags=["weights"])
    assert llm.sleeping_tags == ("kv_cache",)
    with pytest.raises(EngineAsleepError):
        engine.step()
    llm.wake_up(tags=["kv_cache"])
    llm.wake_up()
    assert not llm.is_sleeping()
    while engine.has_unfinished_requests():
        outputs = engine.step()
    assert outputs[-1].outputs[0].token_ids == expected[0][0]


def test_modes_wait_and_abort(llm, expected):
    engine = llm.llm_engine
    engine.add_request("a", PROMPTS[0], PARAMS[0])
    llm.sleep(1, mode="wait")
    llm.wake_up()
    assert engine.step()[-1].outputs[0].token_ids == expected[0][0]
    engine.add_request("b", PROMPTS[0], PARAMS[0])
    llm.sleep(1, mode="abort")
    [output] = engine.step()
    assert output.outputs[0].finish_reason == "abort"
    llm.wake_up()
    assert [o.outputs[0].token_ids for o in llm.generate(PROMPTS[0], PARAMS[0], use_tqdm=False)] == expected[0]


def test_relative_paths_outlive_a_change_of_folder(qwen3_folder, expected, tmp_path, monkeypatch):
    (tmp_path / "model").symlink_to(qwen3_folder)
    (tmp_path / "backups").mkdir()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with LLM("model", **OPTIONS, sleep_dir="~/backups") as llm:
        monkeypatch.chdir("elsewhere")
        assert run_with_sleeps(llm, every=20, level=1, backup="disk")[0] == expected
        llm.sleep(level=2)
        llm.wake_up()
        assert llm.generate(PROMPTS[0], PARAMS[0], use_tqdm=False)[0].outputs[0].token_ids == expected[0][0]


def test_a_changed_checkpoint_is_found_and_the_engine_stays_asleep(llm, expected):
    def fill_with_a_flipped_byte(fill):
        fill()
        model_of(llm).lm_head.weight.view(-1)[5].neg_()

    llm.sleep(1)
    with weights_filled_by(llm, fill_with_a_flipped_byte), pytest.raises(WakeUpError, match="lm_head"):
        llm.wake_up()
    assert llm.sleeping_tags == ("weights", "kv_cache")
    with pytest.raises(EngineAsleepError):
        llm.generate("x", use_tqdm=False)
    llm.wake_up()
    assert [o.outputs[0].token_ids for o in llm.generate(PROMPTS[0], PARAMS[0], use_tqdm=False)] == expected[0]


def test_misuse(llm, qwen3_folder):
    for arguments, param in (
        ({"level": 3}, "level"),
        ({"level": 1.0}, "level"),
        ({"level": True}, "level"),
        ({"mode": "x"}, "mode"),
        ({"tags": ["graphs"]}, "tags"),
        ({"keep_prefix_cache": "no"}, "keep_prefix_cache"),
    ):
        with pytest.raises(InvalidRequestError) as error:
            llm.sleep(**arguments)
        assert error.value.param == param
    with pytest.raises(InvalidRequestError):
        llm.wake_up(tags=["x"])
    for call in (
        lambda: llm.sleep(1, "wait"),  # after the level everything has a name
        lambda: llm.sleep(1, tag=["weights"]),
        lambda: llm.explain_sleep(1, mode="wait"),
        lambda: llm.llm_engine.sleep(1, "wait"),
    ):
        with pytest.raises(TypeError):
            call()
    assert not llm.is_sleeping() and not llm.llm_engine.is_sleeping()
    with LLM(str(qwen3_folder), max_model_len=64) as other, pytest.raises(ConfigError, match="enable_sleep_mode"):
        other.sleep()


def test_two_engines_sleep_on_their_own(qwen3_folder, llama_folder):
    params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
    with LLM(str(qwen3_folder), **OPTIONS) as one, LLM(str(llama_folder), **OPTIONS) as two:
        engines = (one, two)
        truth = [llm.generate("hello", params, use_tqdm=False)[0].outputs for llm in engines]
        for turn in range(6):
            engines[turn % 2].sleep(1 + turn % 3 // 2)
            awake = engines[1 - turn % 2]
            assert awake.generate("hello", params, use_tqdm=False)[0].outputs == truth[1 - turn % 2]
            engines[turn % 2].wake_up()
            assert engines[turn % 2].generate("hello", params, use_tqdm=False)[0].outputs == truth[turn % 2]
